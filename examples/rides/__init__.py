"""Bike rides as CSV: the data and the pipelines of `docs/tutorial.md`."""
