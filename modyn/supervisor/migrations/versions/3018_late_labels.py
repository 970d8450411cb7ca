"""How many samples wait for their labels, at the cursor and at each trigger."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "3018"
down_revision = "3017"


def upgrade() -> None:
    """Add `num_waiting` and `first_waiting`; until now each label came with its sample."""
    for table in ("cursors", "triggers"):
        op.add_column(table, sa.Column("num_waiting", sa.BigInteger, nullable=False, server_default="0"), schema="supervisor")
    op.add_column("cursors", sa.Column("first_waiting", sa.BigInteger), schema="supervisor")
    op.add_column("cursors", sa.Column("next_label", sa.BigInteger, nullable=False, server_default="0"), schema="supervisor")
    op.add_column("runs", sa.Column("end_label", sa.BigInteger), schema="supervisor")
