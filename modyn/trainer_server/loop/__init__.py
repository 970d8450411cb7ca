"""The training loop, its components, its hooks and its checkpoints."""
