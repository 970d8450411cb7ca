"""Sections of the system file."""
