"""Clicks with drift: scenarios of continuous training on one stream."""
