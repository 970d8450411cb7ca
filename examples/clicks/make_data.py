"""Write clicks of 60 days as JSON Lines, one file a day. The vocabulary grows, and the data drift slowly and change abruptly on one day.

    python -m examples.clicks.make_data clicks-data [--rows 30000]

The probability of a click depends on price, age, site, advertiser, device and the words of the query. The weights of site, advertiser, device and
words change slowly over the 60 days. From day 40 on, the weights of words have the opposite sign. New advertisers and sites appear every day. Equal
seeds give equal files.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

DAYS: Final = 60
DAY_S: Final = 86_400
FIRST_TIMESTAMP: Final = 1_735_689_600
"""2025-01-01 in UTC."""
CHANGE_DAY: Final = 40
DEVICES: Final = ("phone", "tablet", "desktop", "tv")
WORDS: Final = ("shoes", "red", "cheap", "running", "sale", "hotel", "berlin", "flight", "phone", "case", "new", "used")
ADVERTISERS, SITES = 2000, 400
"""Numbers at the end of the stream. At the start, the numbers are half as large."""
SEED: Final = 11


def make_clicks(folder: Path, num_rows: int = 30_000, seed: int = SEED) -> int:
    """Write `folder/day-NN.jsonl`, and return the number of rows. Existing files are written again with the same content."""
    folder.mkdir(parents=True, exist_ok=True)
    for day, rows in enumerate(clicks(num_rows, seed)):
        path = folder / f"day-{day:02d}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        when = FIRST_TIMESTAMP + (day + 1) * DAY_S
        os.utime(path, (when, when))
    return num_rows


def clicks(num_rows: int, seed: int = SEED) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows of each day, in the order of their times."""
    world, generator = np.random.default_rng(seed), np.random.default_rng(seed + 1)
    sizes = {"advertiser": ADVERTISERS, "site": SITES, "device": len(DEVICES), "query": len(WORDS)}
    weights = {name: world.normal(0, 0.8, (2, size)) for name, size in sizes.items()}
    for day, count in enumerate(np.diff(np.linspace(0, num_rows, DAYS + 1).astype(int)).tolist()):
        turned = day / DAYS * np.pi / 2
        now = {name: np.cos(turned) * before + np.sin(turned) * after for name, (before, after) in weights.items()}
        if day >= CHANGE_DAY:
            now["query"] = -now["query"]
        yield _rows(day, count, now, generator)


def _rows(day: int, count: int, weights: dict[str, Any], generator: np.random.Generator) -> list[dict[str, Any]]:
    grown = 0.5 + 0.5 * day / DAYS
    advertiser = generator.zipf(1.3, count) % int(ADVERTISERS * grown)
    site = generator.zipf(1.3, count) % int(SITES * grown)
    device = generator.integers(0, len(DEVICES), count)
    words = [generator.choice(len(WORDS), generator.integers(1, 4), replace=False) for _ in range(count)]
    price = generator.lognormal(3 + day / DAYS, 1.0, count).round(2)
    age = generator.integers(16, 80, count).astype(float)
    logits = weights["advertiser"][advertiser] + weights["site"][site] + weights["device"][device]
    logits += np.array([weights["query"][found].sum() for found in words]) - 0.4 * (np.log(price) - 3) - 0.02 * (age - 40) - 0.5
    clicked = generator.random(count) < 1 / (1 + np.exp(-logits))
    times = np.sort(generator.integers(0, DAY_S, count)) + FIRST_TIMESTAMP + day * DAY_S
    return [
        {
            "time": int(times[row]),
            "click": int(clicked[row]),
            "price": float(price[row]),
            # One age in ten is missing.
            "age": None if generator.random() < 0.1 else float(age[row]),
            "site": f"site-{site[row]}",
            "advertiser": f"adv-{advertiser[row]}",
            "device": DEVICES[device[row]],
            "query": " ".join(WORDS[at] for at in words[row]),
        }
        for row in range(count)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=30_000)
    options = parser.parse_args()
    print(f"{make_clicks(options.folder, options.rows):,} clicks of {DAYS} days in {options.folder}")


if __name__ == "__main__":
    main()
