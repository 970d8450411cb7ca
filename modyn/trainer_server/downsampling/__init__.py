"""Choose the samples to train on: policies, and the coreset methods that they use. No module reads batches; see `trainer_server/scoring`."""
