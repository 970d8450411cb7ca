"""Reports of prediction servers about the models of runs."""
