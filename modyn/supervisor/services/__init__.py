"""The connections of runs to the other services."""
