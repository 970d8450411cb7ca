"""Benchmark programs: each runs ours and the other side in one run, in turn, and prints the ratio as its last line."""
