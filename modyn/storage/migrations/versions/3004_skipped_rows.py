"""Rows of indexed files that cannot be used."""

from __future__ import annotations

from alembic import op

revision = "3004"
down_revision = "3003"


def upgrade() -> None:
    """Add the table."""
    op.execute(
        """
        CREATE TABLE storage.skipped_rows (
            dataset_id integer NOT NULL REFERENCES storage.datasets ON DELETE CASCADE,
            path       bytea NOT NULL,
            at         bigint NOT NULL,            -- byte of the file where the row begins
            reason     text NOT NULL,
            found_at   double precision NOT NULL
        );
        CREATE UNIQUE INDEX skipped_rows_place ON storage.skipped_rows (dataset_id, sha256(path), at);
        """
    )
