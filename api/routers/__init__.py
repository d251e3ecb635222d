"""One router a noun: its bodies, its answers and its calls."""
