"""Passes and hooks that score samples during a training, and choose among them by a downsampling policy."""
