"""Calls between services: start a server, open a channel, translate errors once on each side."""
