"""Storage: the dataset catalogue, the columnar sample index and payloads by key."""
