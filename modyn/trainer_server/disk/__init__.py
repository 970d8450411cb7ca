"""The files that a training keeps on disk: their paths and their formats."""
