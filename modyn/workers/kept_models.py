"""Weights that a session keeps between its commands, so that the next one need not fetch what this one had."""

from __future__ import annotations

from collections import OrderedDict


class KeptModels:
    """The content of safetensors files by the hash of their weights: the most recently used ones, `limit` bytes in all. Not for threads.

    >>> kept = KeptModels(limit=6)
    >>> kept.put("a", b"123"); kept.put("b", b"456"); kept.get("a"); kept.put("c", b"789")
    b'123'
    >>> kept.get("a"), kept.get("b"), kept.get("c")
    (b'123', None, b'789')
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._contents: OrderedDict[str, bytes] = OrderedDict()
        self._num_bytes = 0

    def __len__(self) -> int:
        return len(self._contents)

    @property
    def limit(self) -> int:
        """Bytes that are kept at most; larger files need not be read for `put`."""
        return self._limit

    def get(self, weights_sha256: str) -> bytes | None:
        """The content of the file with these weights, if it is kept; it counts as used now.

        Args: weights_sha256: as `modyn.models.weights.weights_sha256` computes it.
        """
        content = self._contents.get(weights_sha256)
        if content is not None:
            self._contents.move_to_end(weights_sha256)
        return content

    def put(self, weights_sha256: str, content: bytes) -> None:
        """Keep a file; the least recently used ones make space. One beyond the limit is not kept."""
        if len(content) > self._limit:
            return
        self._num_bytes += len(content) - len(self._contents.pop(weights_sha256, b""))
        self._contents[weights_sha256] = content
        while self._num_bytes > self._limit:
            _, old = self._contents.popitem(last=False)
            self._num_bytes -= len(old)
