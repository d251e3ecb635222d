"""PostgreSQL: models, queries by noun, migrations. The only package that writes SQL.

What every task needs is a statement made once, a constant above the function that runs it: building
one for each call takes as long as PostgreSQL takes for it (see docs/performance.md).
"""
