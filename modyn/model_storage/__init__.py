"""Model storage: the one place where model versions live, each visible at once and complete, or not at all."""
