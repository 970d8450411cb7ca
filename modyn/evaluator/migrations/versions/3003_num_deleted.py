"""How many samples of the dataset were deleted when a score was made."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "3003"
down_revision = "3002"


def upgrade() -> None:
    """Add the column; of scores of before it is not known."""
    op.add_column("results", sa.Column("num_deleted", sa.BigInteger), schema="evaluator")
