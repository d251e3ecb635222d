"""The HTTP API: thin routers over the store. No call to Temporal on any request's path."""
