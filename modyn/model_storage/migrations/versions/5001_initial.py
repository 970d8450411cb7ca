"""The catalogue of models, and the audit trail of promotions and rollbacks."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from modyn.db.engine import columns

revision = "5001"
down_revision = None


def upgrade() -> None:
    """Create the tables `models`, `store` and `promotions`."""
    op.create_table(
        "models",
        sa.Column("model_id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
        *columns(sa.Text, "run_id model_class model_definition strategy weights_sha256", nullable=False),
        *columns(sa.Text, "file_name", nullable=False, unique=True),
        *columns(sa.BigInteger, "trigger_id num_bytes unpacked_bytes full_bytes", nullable=False),
        *columns(sa.BigInteger, "parent_id"),
        # Null: the file contains the version whole. A base is older than the version, so no version needs itself.
        sa.Column(
            "base_id", sa.BigInteger, sa.ForeignKey("model_storage.models.model_id"), sa.CheckConstraint("base_id < model_id")
        ),
        # Null: the model has no saved state of optimizers.
        *columns(sa.BigInteger, "optimizers_bytes"),
        *columns(sa.JSON, "model_config training_result section layout", nullable=False),
        *columns(sa.Double, "created_at encode_s full_encode_s", nullable=False),
        *columns(sa.Boolean, "promoted", nullable=False),
        schema="model_storage",
    )
    _create_unique_index("one_model_a_trigger", ["run_id", "trigger_id"], "run_id <> ''")
    _create_unique_index("one_promoted_a_run", ["run_id"], "promoted AND run_id <> ''")
    op.create_index(
        "differences_to_a_model", "models", ["base_id"], schema="model_storage", postgresql_where=sa.text("base_id IS NOT NULL")
    )
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
