"""The cache of prepared samples in one process that reads samples."""
