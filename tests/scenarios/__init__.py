"""Whole-system tests: real processes, a real database, a real Temporal server, real agents."""
