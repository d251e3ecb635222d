"""Pure rules of Segue: no I/O, no import of another package of ours."""
