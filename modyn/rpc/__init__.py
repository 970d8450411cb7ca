"""Calls between services: servers, channels, and the translation of errors on both sides."""

import os

# Modyn needs no fork support: its processes fork before the first channel, or execute another program after the fork. With fork support, gRPC
# starts threads in a fork, and these threads may end the fork when its open files are closed. gRPC reads this variable only at its start.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
