"""Samples of each run lie in a table of their own, in the order of arrival, with a block range index in place of a B-tree."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    partitions = op.get_bind().scalars(
        sa.text(
            "SELECT child.relname FROM pg_inherits JOIN pg_class child ON child.oid = inhrelid "
            "WHERE inhparent = 'selector.samples'::regclass"
        )
    )
    for name in list(partitions):
        op.execute(f"ALTER TABLE selector.samples DETACH PARTITION selector.{name}")
        # The primary key goes with the column.
        op.execute(f"ALTER TABLE selector.{name} DROP COLUMN run_number")
        op.execute(f"CREATE INDEX {name}_position ON selector.{name} USING brin (position)")
    op.execute("DROP TABLE selector.samples")
