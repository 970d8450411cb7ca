"""An example of your own package: one file for each policy. Modyn finds the policies through the entry points in pyproject.toml."""
