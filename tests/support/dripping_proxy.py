"""A server between a client and a Unix socket that passes questions on at once, and answers a byte at a time, each soon after the one before; or that
says before each answer that time has passed."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

PAUSE_S = 0.05


class DrippingProxy:
    """Answers in full while `drips` is False."""

    def __init__(self, path: Path, target: str, before_answer: Callable[[bytes], None] = lambda piece: None) -> None:
        """Args: before_answer: called with each piece of an answer before it is passed on."""
        self.url = f"unix://{path}"
        self.drips = False
        self._before_answer = before_answer
        self._target = target.removeprefix("unix://")
        self._closed = threading.Event()  # Ends the pauses between two bytes.
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._listener.settimeout(0.1)  # Then it looks whether it is closed.
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> DrippingProxy:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._thread.join()  # Within one pause: all waits look at `_closed`.
        self._listener.close()

    def _serve(self) -> None:
        connections: list[threading.Thread] = []
        while not self._closed.is_set():
            try:
                client, _ = self._listener.accept()
            except TimeoutError:
                continue
            connections.append(threading.Thread(target=self._connect, args=(client,)))
            connections[-1].start()
        for connection in connections:
            connection.join()

    def _connect(self, client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as server, suppress(OSError):  # Any end may go.
            server.connect(self._target)
            answers = threading.Thread(target=self._answer, args=(server, client))
            answers.start()
            client.settimeout(0.1)
            try:
                self._pass_on(client, server)
            finally:
                with suppress(OSError):
                    server.shutdown(socket.SHUT_RDWR)
                answers.join()  # The server's end is closed, and pauses look at `_closed`.

    def _pass_on(self, client: socket.socket, server: socket.socket) -> None:
        while not self._closed.is_set():
            try:
                content = client.recv(1 << 16)
            except TimeoutError:
                continue
            if not content:
                return
            server.sendall(content)

    def _answer(self, server: socket.socket, client: socket.socket) -> None:
        try:
            while content := server.recv(1 << 16):
                self._before_answer(content)
                for start in range(0, len(content), 1 if self.drips else len(content)):
                    if self.drips:
                        self._closed.wait(PAUSE_S)
                    client.sendall(content[start : start + 1] if self.drips else content)
        except OSError:
            return  # One end has gone.
