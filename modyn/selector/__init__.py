"""The selector stores the samples that a run has seen, and chooses the samples that each trigger trains on."""
