"""``python -m cli`` is ``segue``."""

from cli.app import main

main()
