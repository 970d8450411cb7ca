"""Rows of files no longer refer to their dataset: checking that took two fifths of the time of adding many files.

Whoever adds files changes the row of the dataset in the same transaction, so that there always is one.
"""

from __future__ import annotations

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE storage.files DROP CONSTRAINT files_dataset_id_fkey")
