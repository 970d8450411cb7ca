"""A server that speaks S3, for tests: moto's, in a process and an environment of its own (`make .venv/moto/.installed`)."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import quote

SERVER = Path(sys.prefix) / "moto" / "bin" / "moto_server"

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test-secret", "AWS_EC2_METADATA_DISABLED": "true"}
"""Environment of processes that read from the server, which accepts any credentials."""
_UNSIGNED = "AWS4-HMAC-SHA256 Credential=test/20200101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=unchecked"


@dataclass(frozen=True)
class S3Server:
    """`address` is host:port."""

    address: str

    def url(self, folder: str) -> str:
        """A `base_path` for bucket and prefix."""
        return f"s3://{folder}?endpoint_override={self.address}&region=us-east-1&scheme=http"

    def put(self, folder: str, objects: Mapping[str, bytes]) -> None:
        """Writes objects by name below `folder`; its bucket is made if need be."""
        bucket, _, prefix = folder.partition("/")
        self.request("PUT", f"/{bucket}")
        for name, content in objects.items():
            self.put_any(bucket, f"{prefix}/{name}".lstrip("/"), content)

    def put_any(self, bucket: str, key: str, content: bytes, **headers: str) -> None:
        """Writes an object under any key, also one that clients would not take as it is, e.g. with `..` in it."""
        self.request("PUT", f"/{bucket}/{quote(key, safe='')}", content, **headers)

    def remove(self, path: str) -> None:
        bucket, _, key = path.partition("/")
        self.request("DELETE", f"/{bucket}/{quote(key, safe='')}")

    def request(self, method: str, path: str, content: bytes = b"", **headers: str) -> None:
        """Sends a request that a client of these tests need not sign. Raises RuntimeError unless it is answered well."""
        connection = HTTPConnection(self.address)
        try:
            connection.request(method, path, content, {"Authorization": _UNSIGNED, **headers})
            answer = connection.getresponse()
            answer.read()
        finally:
            connection.close()
        if answer.status not in {200, 204}:
            raise RuntimeError(f"{method} {path}: {answer.status}")


@contextmanager
def running_s3() -> Iterator[S3Server]:
    """Raises FileNotFoundError if the server is not installed."""
    command = [str(SERVER), "-H", "127.0.0.1", "-p", "0"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    drain: subprocess.Popen[bytes] | None = None
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if found := re.search(r"http://(127\.0\.0\.1:\d+)", line):
                break
        else:
            raise RuntimeError(f"{SERVER} ended before it served")
        # It logs each request; that output is not read, and a full pipe would stop it.
        drain = subprocess.Popen(["cat"], stdin=process.stderr, stdout=subprocess.DEVNULL)
        yield S3Server(found[1])
    finally:
        process.kill()
        process.wait()
        if drain is not None:
            drain.wait()
        process.stderr.close()
