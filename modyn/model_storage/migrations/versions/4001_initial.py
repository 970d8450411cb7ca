"""The catalogue of models, and the audit trail of promotions and rollbacks."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from modyn.db.engine import columns

revision = "4001"
down_revision = None


def upgrade() -> None:
    """Create the tables `models`, `store` and `promotions`."""
    op.create_table(
        "models",
        sa.Column("model_id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
        *columns(sa.Text, "run_id model_class strategy weights_sha256", nullable=False),
        *columns(sa.Text, "file_name", nullable=False, unique=True),
        *columns(sa.BigInteger, "trigger_id num_bytes unpacked_bytes", nullable=False),
        *columns(sa.BigInteger, "parent_id"),
        # Null: the model has no saved state of optimizers.
        *columns(sa.BigInteger, "optimizers_bytes"),
        *columns(sa.JSON, "model_config training_result strategy_config layout", nullable=False),
        *columns(sa.Double, "created_at", nullable=False),
        *columns(sa.Boolean, "promoted", nullable=False),
        schema="model_storage",
    )
    _create_unique_index("one_model_a_trigger", ["run_id", "trigger_id"], "run_id <> ''")
    _create_unique_index("one_promoted_a_run", ["run_id"], "promoted AND run_id <> ''")
    op.create_table("store", sa.Column("store_id", sa.Text, primary_key=True), schema="model_storage")
    op.execute("INSERT INTO model_storage.store VALUES (gen_random_uuid()::text)")
    op.create_table(
        "promotions",
        sa.Column("promotion_id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
        *columns(sa.Text, "run_id action reason made_by", nullable=False),
        *columns(sa.BigInteger, "model_id", nullable=False),
        *columns(sa.BigInteger, "before_id"),
        *columns(sa.Double, "made_at", nullable=False),
        *columns(sa.JSON, "verdicts", nullable=False, server_default="[]"),
        schema="model_storage",
    )
    op.create_index("promotions_of_a_run", "promotions", ["run_id", "promotion_id"], schema="model_storage")


def _create_unique_index(name: str, names: list[str], where: str) -> None:
    op.create_index(name, "models", names, unique=True, schema="model_storage", postgresql_where=sa.text(where))
