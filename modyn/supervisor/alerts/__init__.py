"""Alerts of runs to other systems."""
