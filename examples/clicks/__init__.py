"""Clicks that drift: the scenarios of continuous training on one stream."""
