"""Numbers of data files may go beyond 2^31."""

from __future__ import annotations

from alembic import op

revision = "3003"
down_revision = "3002"


def upgrade() -> None:
    """Widen the column; the table is written anew, which takes some seconds for ten million files."""
    op.execute("ALTER TABLE storage.files ALTER COLUMN file_id TYPE bigint")
