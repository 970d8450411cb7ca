"""Datasets, their files, segments, problems and skipped rows."""

from __future__ import annotations

from alembic import op

revision = "5001"
down_revision = None


def upgrade() -> None:
    """Create the tables of datasets, files, segments, problems and skipped rows."""
    op.execute(
        """
        CREATE TABLE storage.datasets (
            id           serial PRIMARY KEY,
            name         text NOT NULL UNIQUE,
            spec         jsonb NOT NULL,
            identity     text NOT NULL,            -- drawn at registration; names the folder of its segments
            float_labels boolean NOT NULL,
            next_key     bigint NOT NULL DEFAULT 0,
            version      bigint NOT NULL DEFAULT 0, -- grows with every change to the rows below
            deleting     boolean NOT NULL DEFAULT false,
            columns      text                      -- JSON of `DatasetSchema.to_json`; null until a file was indexed
        );
        CREATE TABLE storage.files (
            dataset_id  integer NOT NULL,          -- no reference: its check takes two fifths of the time of adding many files
            file_id     bigint NOT NULL,
            path        bytea NOT NULL,            -- relative to the dataset's folder; any bytes but NUL
            size        bigint NOT NULL,
            mtime_ns    bigint NOT NULL,
            indexed_end bigint NOT NULL,
            num_samples bigint NOT NULL,
            fingerprint text NOT NULL,             -- of the first indexed_end bytes; '' for files of one sample
            altered     boolean NOT NULL,
            tail        bigint NOT NULL DEFAULT -1, -- checksum of the end of a file that may grow; -1: not known
            checked_bytes   bigint NOT NULL DEFAULT 0, -- this and the next two: as in `CheckedFile`; scrubs keep them
            crc32           bigint NOT NULL DEFAULT 0,
            times_forgotten integer NOT NULL DEFAULT 0,
            PRIMARY KEY (dataset_id, file_id)
        );
        -- A path may be longer than an index entry of PostgreSQL.
        CREATE UNIQUE INDEX files_path ON storage.files (dataset_id, sha256(path));
        CREATE TABLE storage.segments (
            dataset_id    integer NOT NULL REFERENCES storage.datasets ON DELETE CASCADE,
            first_key     bigint NOT NULL,
            num_samples   bigint NOT NULL CHECK (num_samples > 0),
            min_timestamp bigint NOT NULL,
            max_timestamp bigint NOT NULL,
            num_bytes     bigint NOT NULL,
            checksum      text NOT NULL,
            file_name     text NOT NULL,
            PRIMARY KEY (dataset_id, first_key)
        );
        CREATE TABLE storage.problems (
            dataset_id integer NOT NULL REFERENCES storage.datasets ON DELETE CASCADE,
            path       bytea NOT NULL,
            signature  text NOT NULL,              -- state of the file when the problem was found
            reason     text NOT NULL,
            found_at   double precision NOT NULL
        );
        CREATE UNIQUE INDEX problems_path ON storage.problems (dataset_id, sha256(path));
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
