"""A cache that trainings in several processes share: each prepares a part of the samples, and is served what others have prepared.

`SharedJob` decides for one training, by what the jobs know together: a `SharedState`, in Redis (`RedisState`) or in the memory of the machine
(`MemoryState`). Values themselves are in a tier.
"""
