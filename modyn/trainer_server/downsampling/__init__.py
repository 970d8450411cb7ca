"""Choose the samples to train on during a training: within batches, or between epochs."""
