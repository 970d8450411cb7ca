"""Alembic migrations of the selector's schema."""
