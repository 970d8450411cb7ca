"""The cache of encoded, decoded and augmented samples: so far the model that says what a split of it between these forms brings."""
