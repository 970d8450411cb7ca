"""From (run, trigger) to batches of tensors: keys from the selector, payloads from storage, the user's functions in between.

Importing this package is cheap; `online_dataset`, `loader`, `decode`, `functions` and `batch` import torch and belong in workers.
"""
