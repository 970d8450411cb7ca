"""Records of storage: datasets, indexed files, indexed samples, payloads. Loaded by training workers: imports nothing heavy."""
