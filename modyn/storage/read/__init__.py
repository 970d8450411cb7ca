"""Reading samples: snapshots of a dataset, record readers, local reads."""
