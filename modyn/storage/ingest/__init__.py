"""Ingestion: new files become samples."""
