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

from pyarrow import fs

SERVER = Path(sys.prefix) / "moto" / "bin" / "moto_server"

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test-secret", "AWS_EC2_METADATA_DISABLED": "true"}
"""Environment of processes that read from the server, which accepts any credentials."""


@dataclass(frozen=True)
class S3Server:
    """`address` is host:port."""

    address: str

    def url(self, folder: str) -> str:
        """A `base_path` for bucket and prefix."""
        return f"s3://{folder}?endpoint_override={self.address}&region=us-east-1&scheme=http"

    def client(self) -> fs.S3FileSystem:
        return fs.S3FileSystem(
            access_key="test",
            secret_key="test-secret",
            endpoint_override=self.address,
            region="us-east-1",
            scheme="http",
            allow_bucket_creation=True,
        )

    def put(self, folder: str, objects: Mapping[str, bytes]) -> None:
        """Writes objects by name below `folder`; its bucket is made if need be."""
        client = self.client()
        client.create_dir(folder.split("/", maxsplit=1)[0])
        for name, content in objects.items():
            with client.open_output_stream(f"{folder}/{name}") as stream:
                stream.write(content)

    def put_any(self, bucket: str, key: str, content: bytes) -> None:
        """Writes an object under a key that clients would not take as it is, e.g. with `..` in it."""
        credential = (
            "AWS4-HMAC-SHA256 Credential=test/20200101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=unchecked"
        )
        connection = HTTPConnection(self.address)
        try:
            connection.request("PUT", f"/{bucket}/{quote(key, safe='')}", content, {"Authorization": credential})
            answer = connection.getresponse()
            answer.read()
        finally:
            connection.close()
        if answer.status != 200:
            raise RuntimeError(f"{key} was not written: {answer.status}")

    def remove(self, path: str) -> None:
        self.client().delete_file(path)


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
