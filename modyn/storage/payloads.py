"""Payloads by key, for the packages that use storage. Payloads are read locally if this process has proof that it sees the same files as storage, and
over Flight otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal

from modyn.config.system import ROW_GROUP_CACHE_BYTES
from modyn.config.system_sections.endpoint import Endpoint
from modyn.errors import ConfigError, UnavailableError
from modyn.rpc.logs import get_logger
from modyn.storage.client import DatasetSchema, StorageClient
from modyn.storage.flight.client import PayloadClient, PayloadStream
from modyn.storage.formats import REGISTRY
from modyn.storage.model.samples import OnMissing, Payloads
from modyn.storage.read.locality import ShortCutOffer
from modyn.storage.read.payload_reader import LocalPayloads, LocatedSamples

__all__ = [
    "LocalPayloads",
    "LocatedSamples",
    "OnMissing",
    "PayloadClient",
    "PayloadStream",
    "Payloads",
    "ShortCut",
    "open_local_payloads",
    "open_payloads",
    "preload_file_formats",
]

ShortCut = Literal["auto", "on", "off"]


def open_payloads(
    storage: Endpoint,
    flights: Sequence[Endpoint],
    dataset: str,
    short_cut: ShortCut = "auto",
    streams: int = 1,
    row_group_cache_bytes: int = ROW_GROUP_CACHE_BYTES,
) -> LocalPayloads | PayloadClient:
    """Return a reader of the payloads of `dataset`. The reader is local if there is proof that this process sees the same files as storage; otherwise
    it reads over Flight.

    Args: short_cut: "on": if a local read is not possible, raise the reason as ConfigError or UnavailableError; "off": use Flight, without asking
    storage whether a local read is possible. streams: for Flight only, see `PayloadClient`. row_group_cache_bytes: largest number of bytes of row
    groups that a local reader caches. flights: payload servers, all with the same data.
    """
    logger = get_logger("storage")
    over_flight = partial(PayloadClient, flights, streams, schema=partial(_ask_schema, storage))
    if short_cut == "off":
        return over_flight()
    try:
        payloads = open_local_payloads(storage, dataset, row_group_cache_bytes=row_group_cache_bytes)
    except (ConfigError, UnavailableError) as error:
        # All other errors would also occur over Flight: an unknown dataset, a damaged index, a wrong token.
        if short_cut == "on":
            raise type(error)(
                f"{error.message}. storage.short_cut is on: run the workers on storage's machine, as its user and with its mounts, or set it to auto"
            ) from error
        logger.info("payloads_over_flight", dataset=dataset, why=error.message)
        return over_flight()
    logger.info("payloads_by_short_cut", dataset=dataset)
    return payloads


def open_local_payloads(
    storage: Endpoint, dataset: str, num_threads: int = 1, row_group_cache_bytes: int = ROW_GROUP_CACHE_BYTES
) -> LocalPayloads:
    """Return a local reader with `num_threads` threads. Raises: the errors of `LocalPayloads`; UnavailableError: storage cannot be reached."""
    return LocalPayloads(dataset, partial(_ask_offer, storage), num_threads, row_group_cache_bytes)


def _ask_offer(storage: Endpoint, dataset: str) -> ShortCutOffer:
    with StorageClient(storage) as client:
        return client.offer_short_cut(dataset)


def _ask_schema(storage: Endpoint, dataset: str) -> DatasetSchema | None:
    with StorageClient(storage) as client:
        return client.dataset(dataset).schema


def preload_file_formats() -> str:
    """Import the file formats before processes are forked from this process. Returns: see `Registry.preload`."""
    return REGISTRY.preload()
