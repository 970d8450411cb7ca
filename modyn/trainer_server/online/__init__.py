"""Proactive training: the steps of an online trigger are a training whose batches are new samples and drawn ones, in the order of the stream.

The loop is the one of all trainings, with its checkpoints and its errors; what is special stands here.
"""
