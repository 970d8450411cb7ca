"""Figures of the cache: what it saves trainings that run together."""
