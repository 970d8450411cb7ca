"""Figures of data selection: `python -m benchmark.selection FIGURE`."""
