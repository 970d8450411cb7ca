"""The selector stores which samples a run has seen, and chooses those that each trigger trains on."""
