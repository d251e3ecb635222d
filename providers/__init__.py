"""Adapters for agent CLIs: how each is started, how its output reads, how its ending is judged.

`registry.get` gives the adapter of a name; `base.Provider` says what an adapter offers. An adapter is
pure: it starts nothing and reads no file (`machine` does). `script_agent` alone is a program: the toy
agent that `script` runs.
"""
