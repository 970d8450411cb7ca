"""What the fakes of all clients share."""

from __future__ import annotations

from typing import Self

from modyn.registry import Plugin


class FakeClient:
    """A client without a connection. `installed` is what `plugins` answers."""

    installed: tuple[Plugin, ...] = ()
    closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Set `closed`."""
        self.closed = True

    def plugins(self) -> list[Plugin]:
        """Return `installed`."""
        return list(self.installed)
