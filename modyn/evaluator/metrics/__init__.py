"""Metrics of models, and the outcome of a model for each sample."""
