"""Requests of trainings: the section `training`, the plan of epochs and batches, and the records of requests and statuses. Imports no torch."""
