"""Model versions that are served: predictors, the routing of requests to versions, and the promotion of versions."""
