"""Checksums of all indexed bytes of data files, which scrubs keep."""

from __future__ import annotations

from alembic import op

revision = "3007"
down_revision = "3006"


def upgrade() -> None:
    """Add the columns, as `CheckedFile` has them; no file that is indexed has been read by a scrub yet."""
    op.execute(
        "ALTER TABLE storage.files ADD COLUMN checked_bytes bigint NOT NULL DEFAULT 0, ADD COLUMN crc32 bigint NOT NULL DEFAULT 0, "
        "ADD COLUMN times_forgotten integer NOT NULL DEFAULT 0"
    )
