"""Trigger policies on a stream without training."""
