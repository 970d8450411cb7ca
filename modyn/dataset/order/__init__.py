"""Which sample comes when: positions within partitions, without keys, weights or payloads."""
