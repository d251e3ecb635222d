"""Servers that stand in for the outside world, as real HTTP servers on this machine."""
