"""The supervisor: decides when to trigger, and executes each run, from the stream to the evaluated models."""
