"""Checks of a pipeline before a run."""
