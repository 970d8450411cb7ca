"""Real receivers of alerts, in the test's process: an HTTP server and a small SMTP server, on free ports of loopback."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class WebReceiver:
    """An HTTP server that records received requests. `answers` are its next statuses; then it answers 204."""

    url: str = ""
    answers: list[int] = field(default_factory=list)
    received: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    """Headers, with names in lower case, and body of each request that was accepted."""
    requests: int = 0


@dataclass
class MailReceiver:
    """An SMTP server that records received messages. `answers` are its next answers to the sender's address; then it accepts."""

    address: str = ""
    answers: list[str] = field(default_factory=list)
    received: list[tuple[list[str], Message]] = field(default_factory=list)
    """Receivers and e-mail."""
    commands: list[str] = field(default_factory=list)


@contextmanager
def web_receiver() -> Iterator[WebReceiver]:
    """An HTTP server that accepts POST."""
    web = WebReceiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            web.requests += 1
            status = web.answers.pop(0) if web.answers else 204
            if status < 300:
                web.received.append(({name.lower(): value for name, value in self.headers.items()}, body))
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("Location", web.url)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Stay silent."""

    with _serving(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as port:
        web.url = f"http://127.0.0.1:{port}/hook"
        yield web


@contextmanager
def mail_receiver() -> Iterator[MailReceiver]:
    """An SMTP server without encryption and login."""
    mail = MailReceiver()

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self._say("220 test")
            receivers: list[str] = []
            while line := self.rfile.readline().decode().rstrip():
                command = line.split(":")[0].split()[0].upper()
                mail.commands.append(command)
                if command == "MAIL":
                    self._say(mail.answers.pop(0) if mail.answers else "250 ok")
                elif command == "RCPT":
                    receivers.append(line.split("<")[1].split(">")[0])
                    self._say("250 ok")
                elif command == "DATA":
                    self._say("354 go on")
                    lines = list(iter(self.rfile.readline, b".\r\n"))
                    mail.received.append((receivers, message_from_bytes(b"".join(lines))))
                    self._say("250 ok")
                else:
                    self._say("250 ok" if command in ("EHLO", "HELO", "RSET", "QUIT") else "502 unknown")

        def _say(self, line: str) -> None:
            self.wfile.write(f"{line}\r\n".encode())

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with _serving(Server(("127.0.0.1", 0), Handler)) as port:
        mail.address = f"127.0.0.1:{port}"
        yield mail


@contextmanager
def _serving(server: socketserver.TCPServer) -> Iterator[int]:
    """Serve in a thread until the block ends; yields the port."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server.socket.getsockname()[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
