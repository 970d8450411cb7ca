"""Figures of models that learn while they serve."""
