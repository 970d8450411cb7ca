"""The columns that all files of a dataset have."""

from __future__ import annotations

from alembic import op

revision = "3006"
down_revision = "3005"


def upgrade() -> None:
    """Add the column, of JSON as `DatasetSchema.to_json`; of datasets that are indexed it is not known yet."""
    op.execute("ALTER TABLE storage.datasets ADD COLUMN columns text")
