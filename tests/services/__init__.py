"""The real PostgreSQL and Temporal servers that tests run against, one of each per test session."""
