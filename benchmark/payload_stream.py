"""Rate at which one client gets payloads by key over Flight, compared with NumPy's fancy indexing of one memory map in the same process.

    python -m benchmark.payload_stream [--samples 1000000] [--pairs 3] [--streams 1 2 4] [--replicas 0] [--report]

Records of 160 bytes. "sequential": all keys in stored order. "sorted": a random half of the keys, in stored order, as they are asked for
when a partition is shuffled here. "shuffled": a permutation of all keys, served in that order. NumPy gathers the same rows, batch by
batch. No decoding on either side. The last line is the median ratio for sorted keys and one stream.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmark.data_path.installation import installation
from benchmark.data_path.records import BATCH_SIZE, RECORD_BYTES, records_dataset, write_flat, write_records
from benchmark.machine import write_report
from modyn.records import Int64Array
from modyn.storage.payloads import PayloadClient


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--replicas", type=int, default=0, help="payload servers in addition to storage's own")
    parser.add_argument("--report", action="store_true", help="write a dated report below benchmark/reports/")
    options = parser.parse_args()
    ratios: dict[tuple[str, int], float] = {}
    lines = []
    with tempfile.TemporaryDirectory(prefix="modyn-stream-") as name:
        folder = Path(name)
        write_records(folder / "records", options.samples)
        flat = np.memmap(write_flat(folder / "records", folder / "flat"), np.uint8, mode="r").reshape(-1, RECORD_BYTES)
        with installation(folder, storage={"replicas": options.replicas}) as services:
            services.ingest(records_dataset("records", folder / "records"), options.samples)
            for order, keys in orders(options.samples).items():
                for streams in options.streams:
                    with PayloadClient(services.config.flight_endpoints, streams) as client:
                        ratio, line = compare(order, streams, keys, client, flat, options.pairs)
                    ratios[order, streams] = ratio
                    lines.append(line)
                    print(line, flush=True)
    if options.report:
        streams = " ".join(map(str, options.streams))
        command = (
            f"python -m benchmark.payload_stream --samples {options.samples} --pairs {options.pairs} --streams {streams} "
            f"--replicas {options.replicas}"
        )
        body = "Medians; ratios are medians of pairs, after one that does not count.\n\n" + "\n".join(
            f"- {line}" for line in lines
        )
        print(f"report: {write_report('payload-stream', command, body)}")
    print(f"sorted, {options.streams[0]} stream(s): {ratios['sorted', options.streams[0]]:.2f}")


def orders(num_samples: int) -> dict[str, Int64Array]:
    random = np.random.default_rng(0)
    shuffled = random.permutation(num_samples)
    return {"sequential": np.arange(num_samples), "sorted": np.sort(shuffled[: num_samples // 2]), "shuffled": shuffled}


def compare(
    order: str, streams: int, keys: Int64Array, client: PayloadClient, flat: npt.NDArray[np.uint8], pairs: int
) -> tuple[float, str]:
    """Return the median ratio of `pairs`, after one pair that is not counted, and a line about it."""

    def ours() -> int:
        return sum(len(payloads) for payloads in client.fetch("records", keys))

    def numpy() -> int:
        return sum(len(flat[keys[first : first + BATCH_SIZE]]) for first in range(0, len(keys), BATCH_SIZE))

    rates = [(rate(ours, len(keys)), rate(numpy, len(keys))) for _ in range(pairs + 1)][1:]
    ratio = statistics.median(mine / theirs for mine, theirs in rates)
    mine, theirs = (statistics.median(side) for side in zip(*rates, strict=True))
    return ratio, f"{order:10} streams={streams}  {mine / 1e6:6.2f} M/s  NumPy {theirs / 1e6:6.2f} M/s  ratio {ratio:.2f}"


def rate(read: Callable[[], int], expected: int) -> float:
    started = time.perf_counter()
    if read() != expected:
        raise RuntimeError("some samples are missing")
    return expected / (time.perf_counter() - started)


if __name__ == "__main__":
    main()
