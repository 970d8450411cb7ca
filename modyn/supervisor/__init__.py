"""Decides when to trigger, and drives each run from its stream to its evaluated models."""
