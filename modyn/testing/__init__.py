"""For tests, ours and those of plug-in authors: one in-memory fake a client, checks that every policy must pass, a real local stack."""
