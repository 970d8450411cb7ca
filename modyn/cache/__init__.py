"""The cache of prepared samples that trainings share. What decides: how it is split between forms (`performance_model.py`, `split_plan.py`), and
which of its values serve a batch (`samplers/`). What keeps: tiers (`tier.py`) of buffers (`sample_codec.py`) under keys (`keys.py`), in Redis
(`redis_tier.py`) or shared memory (`memory_tier.py`). How trainings in several processes decide together:
`sharing/`. Batches are read through it by `modyn/dataset/`."""
