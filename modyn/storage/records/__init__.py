"""Datasets of records: the log that clients append to, and how its records become samples."""
