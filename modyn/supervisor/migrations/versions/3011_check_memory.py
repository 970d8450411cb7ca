"""What a trigger policy needs of a check to go on from it, beside its evidence."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "3011"
down_revision = "3010"


def upgrade() -> None:
    """Add `memory` to `checks`; checks until now had none."""
    column = sa.Column("memory", JSONB, nullable=False, server_default=sa.text("'{}'"))
    op.add_column("checks", column, schema="supervisor")
