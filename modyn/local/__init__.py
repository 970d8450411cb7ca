"""The stack of one machine: embedded PostgreSQL and Redis, and all services, as processes."""
