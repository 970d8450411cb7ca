"""The order of samples as positions within partitions, without keys, weights or payloads."""
