"""Model storage, the service that stores all model versions. A version is either visible and complete, or absent."""
