"""How the samples of a run are decoded, for who reads its trigger sets without the pipeline."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.add_column("runs", sa.Column("data", sa.JSON), schema="selector")
