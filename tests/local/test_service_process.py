from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

from modyn.testing.waiting import PATIENCE_S


def test_processes_start_during_calls(tmp_path: Path) -> None:
    """gRPC would begin threads in a fork, which end it when its open files are closed. In a process of its own: gRPC looks at that once."""
    program = f"""
        import os, sys, threading
        from concurrent.futures import ThreadPoolExecutor
        from pathlib import Path

        from modyn.local.service_process import spawn
        from modyn.rpc.server import grpc
        from grpc_health.v1 import health, health_pb2, health_pb2_grpc

        server = grpc.server(ThreadPoolExecutor(2))
        health_pb2_grpc.add_HealthServicer_to_server(health.HealthServicer(), server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        ended = threading.Event()

        def ask():
            stub = health_pb2_grpc.HealthStub(grpc.insecure_channel(f"127.0.0.1:{{port}}"))
            while not ended.is_set():
                stub.Check(health_pb2.HealthCheckRequest(service=""))

        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        log = Path({str(tmp_path / "log")!r})
        codes = {{spawn(["true"], log).wait() for _ in range(50)}}
        ended.set()
        for thread in threads:
            thread.join()
        server.stop(None).wait()
        sys.exit(f"{{codes}} {{log.read_text()}}" if codes != {{0}} or log.read_text() else 0)
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
