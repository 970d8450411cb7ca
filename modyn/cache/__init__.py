"""The cache of prepared samples that trainings share. `plan/` divides the cache between encoded, decoded and augmented samples. `tiers/` stores
buffers (`sample_codec.py`) under keys (`keys.py`) in Redis or shared memory. `sharing/` decides which cached values a batch gets if several trainings
share the cache. `modyn/dataset/` reads batches through the cache."""
