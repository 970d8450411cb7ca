"""Last import of a fork server: excludes all objects from garbage collection, and enables it again for later objects. Otherwise each forked process
would search through these objects, and a search copies their memory pages."""

import gc

gc.freeze()
gc.enable()
