"""Whether a run trains on the samples that are left when its stream ends."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "3006"
down_revision = "3005"


def upgrade() -> None:
    """Add the column; runs that there are leave these samples."""
    column = sa.Column("final_trigger", sa.Boolean, nullable=False, server_default=sa.false())
    op.add_column("runs", column, schema="supervisor")
