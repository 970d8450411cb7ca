"""The evaluator computes metrics of stored models on intervals of a dataset, with one forward pass for each sample and model."""
