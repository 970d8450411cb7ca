"""Which downsampling policy serves a trigger, where a score decides."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "3013"
down_revision = "3012"


def upgrade() -> None:
    """Add `downsampling_turn` and `downsampling_score` to `triggers`; until now no score decided."""
    op.add_column("triggers", sa.Column("downsampling_turn", sa.BigInteger), schema="supervisor")
    op.add_column("triggers", sa.Column("downsampling_score", sa.Float), schema="supervisor")
