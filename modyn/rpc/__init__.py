"""Calls between services: servers, channels, and the translation of errors on both sides."""

import os

# Processes of Modyn fork before the first channel, or execute another program after the fork. With fork support, gRPC starts threads in a fork, and
# these threads may end the fork when the open files of the fork are closed. gRPC reads this variable once, when gRPC starts.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
