"""Measurements for trigger policies: windows, distances, accuracies, times of trainings, and forecasts."""
