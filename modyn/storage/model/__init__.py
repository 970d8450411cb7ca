"""Records of storage: datasets, files, indexed samples, payloads."""
