"""The next key of a replay's dataset at submission, which bounds what the run reads."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "3002"
down_revision = "3001"


def upgrade() -> None:
    """Add the column, unset for the runs that there are: their replays stay unbounded."""
    op.add_column("runs", sa.Column("end_key", sa.BigInteger), schema="supervisor")
