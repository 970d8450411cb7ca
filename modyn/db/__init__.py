"""PostgreSQL: one schema a service, brought up to date by its own Alembic migrations."""
