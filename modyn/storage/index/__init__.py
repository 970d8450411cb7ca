"""The sample index: segments and tombstones."""
