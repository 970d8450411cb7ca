"""The state of the optimizers that a version was trained with."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "3002"
down_revision = "3001"


def upgrade() -> None:
    """Column `optimizers_bytes` of `models`; null: no state is kept."""
    op.add_column("models", sa.Column("optimizers_bytes", sa.BigInteger), schema="model_storage")
