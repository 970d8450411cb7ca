"""The tables of the flows in docs/architecture.md."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"


def documented_flows() -> dict[str, tuple[int, set[str]]]:
    """By flow: the number of its files that the page says, and the files, as paths below `modyn/` and C++. Over Flight, local ones included."""
    section = PAGE.read_text().split("## The flows and the files they pass")[1].split("\n## ")[0]
    local, flight, *others = re.findall(r"\*\*(.+?): (\d+) files\.\*\*(.+?)(?=\n\*\*|$)", section, re.DOTALL)
    flows = {name: (int(number), _files_of_tables(text)) for name, number, text in (local, flight, *others)}
    flows[flight[0]][1].update(flows[local[0]][1] - {"dataset/local_batches.py"})
    return flows


def _files_of_tables(text: str) -> set[str]:
    """What the rows `| where | folder | files |` name."""
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| ") and not line.endswith("| files |")]
    cells = [(folder.strip(" `"), name.strip(" `\\*")) for _, folder, names in rows for name in names.split(",")]
    return {name if name == "C++" else folder + name for folder, name in cells}
