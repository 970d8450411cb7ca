"""PostgreSQL: one schema for each service, brought up to date by its own Alembic migrations."""
