"""The journal, the durable record of runs: its writes, its queries, its records and the states of runs."""
