"""The short cut: a reader on the machine of storage looks samples up and reads them itself, without a service in between.

It is taken by proof only, see `modyn.storage.proof`. What storage publishes is looked at again for each request, so that a reader sees
deletions and new samples as those do who ask the service. Storage need not run while a reader reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Literal, Self

from modyn.config.system import Endpoint
from modyn.records import Int64Array
from modyn.storage.flight import OnMissing, PayloadClient, Payloads
from modyn.storage.index_view import IndexView
from modyn.storage.payloads import Located, locate

__all__ = ["LocalPayloads", "Located", "ShortCut", "open_payloads"]

ShortCut = Literal["auto", "on", "off"]


class LocalPayloads:
    """Payloads of one dataset by key, read here. May be used by several threads at once, not across a fork."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None: ...

    def fetch(self, dataset: str, keys: Int64Array, on_missing: OnMissing = "raise") -> Iterator[Payloads]:
        """As `PayloadClient.fetch`."""
        raise NotImplementedError

    def locate(self, dataset: str, keys: Int64Array, on_missing: OnMissing = "raise") -> Located:
        """Where the samples of `keys` are; `Located.take` reads them. Missing keys as for `fetch`."""
        return locate(self._view, keys, on_missing)

    def _view(self) -> IndexView:
        raise NotImplementedError


def open_payloads(
    storage: Endpoint, flights: Sequence[Endpoint], dataset: str, short_cut: ShortCut = "auto", num_threads: int = 1
) -> LocalPayloads | PayloadClient:
    """A reader of the dataset's payloads: by the short cut if it is proven that this process sees what storage sees, else over Flight.

    "on": UnavailableError that says why the short cut cannot be taken. "off": storage is not asked.
    """
    raise NotImplementedError
