"""HTTP and gRPC interfaces of the prediction server."""
