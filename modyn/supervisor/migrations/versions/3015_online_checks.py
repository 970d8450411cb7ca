"""Which checks are of `online.trigger`."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "3015"
down_revision = "3014"


def upgrade() -> None:
    """Add `online` to `checks`, of which there may be two at a position; until now none was."""
    op.add_column("checks", sa.Column("online", sa.Boolean, nullable=False, server_default="false"), schema="supervisor")
    op.drop_constraint("checks_pkey", "checks", schema="supervisor")
    op.create_primary_key("checks_pkey", "checks", ["run_id", "position", "online"], schema="supervisor")
