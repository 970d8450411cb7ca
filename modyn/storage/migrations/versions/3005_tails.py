"""Checksums of the ends of files that may grow."""

from __future__ import annotations

from alembic import op

revision = "3005"
down_revision = "3004"


def upgrade() -> None:
    """Add the column; of files that are indexed nothing is known yet."""
    op.execute("ALTER TABLE storage.files ADD COLUMN tail bigint NOT NULL DEFAULT -1")
