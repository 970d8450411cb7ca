"""Datasets, their files, segments and problems."""

from __future__ import annotations

from alembic import op

revision = "3001"
down_revision = None


def upgrade() -> None:
    """Tables of datasets, files, segments and problems."""
    op.execute(
        """
        CREATE TABLE storage.datasets (
            id           serial PRIMARY KEY,
            name         text NOT NULL UNIQUE,
            spec         jsonb NOT NULL,
            folder       text NOT NULL,            -- of its segments, below the folder of storage
            float_labels boolean NOT NULL,
            next_key     bigint NOT NULL DEFAULT 0,
            version      bigint NOT NULL DEFAULT 0, -- grows with every change to the rows below
            deleting     boolean NOT NULL DEFAULT false
        );
        CREATE TABLE storage.files (
            dataset_id  integer NOT NULL,          -- no reference: checking it took two fifths of the time of adding many files
            file_id     integer NOT NULL,
            path        bytea NOT NULL,            -- relative to the dataset's folder; any bytes but NUL
            size        bigint NOT NULL,
            mtime_ns    bigint NOT NULL,
            indexed_end bigint NOT NULL,
            num_samples bigint NOT NULL,
            fingerprint text NOT NULL,             -- of the first indexed_end bytes; '' for files of one sample
            altered     boolean NOT NULL,
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
        """
    )
