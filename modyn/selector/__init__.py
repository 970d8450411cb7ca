"""The store of choices: which samples a run has seen, and which of them each trigger trains on."""
