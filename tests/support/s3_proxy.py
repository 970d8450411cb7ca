"""A server between client and bucket that counts what is asked for, and answers in its place when a test wants an outage."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_NOT_PASSED_ON = {"connection", "content-length", "transfer-encoding", "date", "server"}


@dataclass(frozen=True, slots=True)
class Asked:
    """A request and how it was answered. `num_bytes` of the answer; `path` with its query."""

    method: str
    path: str
    byte_range: str | None
    if_match: str | None
    status: int
    num_bytes: int
    authorization: str | None


@dataclass(eq=False)
class S3Proxy:
    """`address` is host:port. `answer`: status and body in place of the server's, unless it is None. `page`: most objects that a page of a
    listing names."""

    target: str
    address: str = ""
    asked: list[Asked] = field(default_factory=list)
    answer: tuple[int, bytes] | None = None
    page: int = 1000

    def take(self) -> list[Asked]:
        """Return the requests since the last call."""
        asked, self.asked = self.asked, []
        return asked

    def replies(self, method: str, path: str, headers: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        if self.answer is not None:
            return self.answer[0], {"Content-Type": "application/xml"}, self.answer[1]
        connection = HTTPConnection(self.target)
        try:
            connection.request(method, path + (f"&max-keys={self.page}" if "list-type=2" in path else ""), headers=headers)
            answer = connection.getresponse()
            passed = {name: value for name, value in answer.getheaders() if name.lower() not in _NOT_PASSED_ON}
            if method == "HEAD":
                passed["Content-Length"] = answer.getheader("Content-Length", "0")
            return answer.status, passed, answer.read()
        finally:
            connection.close()


@contextmanager
def proxied(target: str) -> Iterator[S3Proxy]:
    """A proxy of the server at `target`, host:port."""
    proxy = S3Proxy(target)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            status, headers, body = proxy.replies(self.command, self.path, dict(self.headers.items()))
            names = self.headers["Range"], self.headers["If-Match"]
            proxy.asked.append(Asked(self.command, self.path, *names, status, len(body), self.headers["Authorization"]))
            self.send_response_only(status)
            for name, value in headers.items():
                self.send_header(name, value)
            if self.command != "HEAD":
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def do_HEAD(self) -> None:
            self.do_GET()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    proxy.address = f"127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
