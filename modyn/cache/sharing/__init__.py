"""A cache that trainings in several processes share. Each training prepares a part of the samples, and reads the values that the other trainings
prepared.

`SharedJob` decides for one training. It asks a `SharedState`, which lists the values and jobs, in Redis (`RedisState`) or in this machine's memory
(`MemoryState`). A tier stores the values.
"""
