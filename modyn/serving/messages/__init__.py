"""Requests and answers of the Open Inference Protocol, for HTTP and gRPC."""
