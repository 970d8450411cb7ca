"""A cache that trainings in several processes share. Each training prepares a part of the samples, and reads the values that the other trainings
prepared.

`SharedJob` decides for one training, with the common knowledge of all jobs in a `SharedState`: in Redis (`RedisState`) or in this machine's memory
(`MemoryState`). A tier holds the values.
"""
