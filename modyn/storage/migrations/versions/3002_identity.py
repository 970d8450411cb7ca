"""The name of a dataset's folder, which was drawn when it was registered, is its identity."""

from __future__ import annotations

from alembic import op

revision = "3002"
down_revision = "3001"


def upgrade() -> None:
    """Rename the column."""
    op.execute("ALTER TABLE storage.datasets RENAME COLUMN folder TO identity")
