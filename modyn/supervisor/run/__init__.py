"""Execution of one run: the stream, the decisions of the policies, and the trainings, step after step."""
