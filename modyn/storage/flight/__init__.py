"""Payloads by key over Arrow Flight: protocol, connections, client and server."""
