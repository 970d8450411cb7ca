"""TLS before a server that speaks none, on a port of this machine."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    try:
        while content := await source.read(1 << 16):
            target.write(content)
            await target.drain()
    except OSError:
        pass  # One end has gone.
    finally:
        target.close()


async def _serve(
    context: ssl.SSLContext, target: Path, ready: threading.Event, started: list[tuple[int, Callable[[], object]]]
) -> None:
    """Serve until the function in `started`, after the port, is called."""

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, questions = await asyncio.open_unix_connection(target)
        await asyncio.gather(_copy(reader, questions), _copy(answers, writer))

    closed = asyncio.Event()  # Set by `tls_proxy` when its block ends.
    server = await asyncio.start_server(pass_on, "127.0.0.1", 0, ssl=context)
    loop = asyncio.get_running_loop()
    started.append((server.sockets[0].getsockname()[1], lambda: loop.call_soon_threadsafe(closed.set)))
    ready.set()
    await closed.wait()
    server.close()


@contextmanager
def tls_proxy(context: ssl.SSLContext, target: Path) -> Iterator[int]:
    """Yield the port whose connections are passed on to the Unix socket `target`. Close them before the block ends."""
    ready, started = threading.Event(), list[tuple[int, Callable[[], object]]]()
    # It ends the connections that are left, which otherwise the garbage collector would find in another test.
    thread = threading.Thread(target=lambda: asyncio.run(_serve(context, target, ready, started)))
    thread.start()
    assert ready.wait(60)  # For the thread to listen.
    try:
        yield started[0][0]
    finally:
        started[0][1]()
        thread.join()
