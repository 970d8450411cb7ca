"""The queue of runs, their resumption, and their removal."""
