"""Trains a model on a trigger set in a warm worker process, and puts the model into model storage."""
