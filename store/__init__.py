"""PostgreSQL: models, queries by noun, migrations. The only package that writes SQL."""
