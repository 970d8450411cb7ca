"""Calls between services: start a server, open a channel, translate errors once on each side."""

import os

# A fork is followed by another program here, or made before there is a channel. The threads that gRPC would start in it end it, by chance, when its
# open files are closed. Before gRPC begins: it looks once.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
