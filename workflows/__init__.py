"""Workflows: deterministic, made of decisions that `domain` defines; they import nothing else of ours."""
