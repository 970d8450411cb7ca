"""The identities of the datasets that a run is evaluated on, at its submission."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "3017"
down_revision = "3016"


def upgrade() -> None:
    """Add the column; of runs of before they are not known."""
    column = sa.Column("evaluation_identities", JSONB, nullable=False, server_default="{}")
    op.add_column("runs", column, schema="supervisor")
