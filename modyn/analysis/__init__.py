"""From results to the numbers that compare pipelines: matrix, composite model, score, cost (SIGMOD'25, section 3)."""
