"""The ``segue`` command: a client of the HTTP API, and the way to start the processes."""
