"""Access to PostgreSQL. Each service has its own schema, which its own Alembic migrations update."""
