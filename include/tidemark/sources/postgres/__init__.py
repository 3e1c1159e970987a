"""Change capture from PostgreSQL: a logical slot into change files, which transactions are bound to."""
