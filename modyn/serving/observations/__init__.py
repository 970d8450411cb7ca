"""Intake of the labels that clients send back. Labels are joined with predictions, and the result is appended to a dataset."""
