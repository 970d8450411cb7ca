"""Scores stored models on intervals of a dataset, one forward pass a sample and model, and keeps the results."""
