"""Write eleven months of bike rides as CSV, for training and for testing. The label says whether a ride ends late.

    python -m examples.rides.make_data FOLDER

Until 15 July rain makes rides late. From 15 July on, rain has no effect.
"""

from __future__ import annotations

import csv
import random
import sys
from datetime import datetime, timedelta
from pathlib import Path

COLUMNS = ["time", "distance", "rain", "district", "late"]
RAIN_STOPS_MATTERING = datetime(2025, 7, 15)


def make(folder: Path, num_rides: int = 24_000) -> None:
    """Write `folder`/train/2025.csv and `folder`/test/2025.csv. Every fifth ride is in the test file."""
    rng = random.Random(1)
    rides: dict[str, list[list[object]]] = {"train": [], "test": []}
    for i in range(num_rides):
        time = datetime(2025, 1, 1) + timedelta(minutes=20 * i)
        distance, rain, district = rng.expovariate(0.3), rng.random() < 0.4, rng.choice(["north", "south", "harbour"])
        risk = 0.4 * distance + 3 * (rain and time < RAIN_STOPS_MATTERING) + 2 * (district == "harbour") - 3
        late = int(rng.gauss(risk, 0.7) > 0)
        rides["train" if i % 5 else "test"].append([time.isoformat(), f"{distance:.2f}", int(rain), district, late])
    for name, rows in rides.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        with (folder / name / "2025.csv").open("w", newline="") as file:
            csv.writer(file).writerows([COLUMNS, *rows])


if __name__ == "__main__":
    make(Path(sys.argv[1]))
