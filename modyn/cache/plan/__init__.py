"""Division of a cache between encoded, decoded and augmented samples: measurements, and predictions for each split."""
