"""What a package of your own looks like: one file a policy, found through the entry points in pyproject.toml."""
