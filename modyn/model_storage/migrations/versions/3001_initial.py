"""The catalogue of models."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "3001"
down_revision = None


def upgrade() -> None:
    """Tables `models` and `store`."""
    op.create_table(
        "models",
        sa.Column("model_id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
        sa.Column("run_id", sa.Text, nullable=False),
        sa.Column("trigger_id", sa.BigInteger, nullable=False),
        sa.Column("parent_id", sa.BigInteger),
        sa.Column("model_class", sa.Text, nullable=False),
        sa.Column("model_config", sa.JSON, nullable=False),
        sa.Column("training_result", sa.JSON, nullable=False),
        sa.Column("strategy", sa.Text, nullable=False),
        sa.Column("strategy_config", sa.JSON, nullable=False),
        sa.Column("layout", sa.JSON, nullable=False),
        sa.Column("file_name", sa.Text, nullable=False, unique=True),
        sa.Column("num_bytes", sa.BigInteger, nullable=False),
        sa.Column("unpacked_bytes", sa.BigInteger, nullable=False),
        sa.Column("weights_sha256", sa.Text, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("promoted", sa.Boolean, nullable=False),
        schema="model_storage",
    )
    op.create_index(
        "one_model_a_trigger",
        "models",
        ["run_id", "trigger_id"],
        unique=True,
        schema="model_storage",
        postgresql_where=sa.text("run_id <> ''"),
    )
    op.create_index(
        "one_promoted_a_run",
        "models",
        ["run_id"],
        unique=True,
        schema="model_storage",
        postgresql_where=sa.text("promoted AND run_id <> ''"),
    )
    op.create_table("store", sa.Column("store_id", sa.Text, primary_key=True), schema="model_storage")
    op.execute("INSERT INTO model_storage.store VALUES (gen_random_uuid()::text)")
