"""Measure how fast a pipeline prepares samples on this machine, and plan a cache from these measurements."""
