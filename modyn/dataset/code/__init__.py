"""User code of pipelines: the allowed forms, the functions that make it callable, and its version."""
