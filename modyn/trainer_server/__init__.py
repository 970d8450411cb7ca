"""Trains a model on a trigger set, in a warm worker process, and puts it into model storage."""
