"""The catalogue of datasets, files and segments in PostgreSQL."""
