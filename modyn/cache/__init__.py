"""The cache of prepared samples that trainings share. `plan/` divides the cache between forms of samples. `tiers/` keeps buffers (`sample_codec.py`)
under keys (`keys.py`) in Redis or shared memory. `sharing/` decides which values serve a batch if several trainings share the cache. `modyn/dataset/`
reads batches through the cache."""
