"""First import of a fork server: disables garbage collection. A search through PyTorch's objects takes 0.1 s, and imports cause ten searches."""

import gc

gc.disable()
