"""Stores of cached samples: shared memory or Redis."""
