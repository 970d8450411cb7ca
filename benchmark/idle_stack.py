"""Processes, memory, processor time and growth of an idle embedded stack.

    python -m benchmark.idle_stack [--minutes 1] [--datasets 0] [--files 1000] [--report]

Memory is PSS: pages that processes share count once. Processor time is that of all processes of the stack, also of those that end
meanwhile. Nothing is compared: the last lines are the sums (goals: at most 450 MiB, at most 1 % of a core).
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmark.machine import write_report
from modyn.client import Client
from modyn.config.dataset import DatasetConfig
from modyn.config.system import SystemConfig

_TICKS = os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0, help="time over which processor time and growth are measured")
    parser.add_argument(
        "--settle", type=float, default=330.0, help="seconds before the measurement: fork servers end after 300 s without work"
    )
    parser.add_argument("--datasets", type=int, default=0, help="watched datasets, each with --files files")
    parser.add_argument("--files", type=int, default=1000, help="files of each dataset")
    parser.add_argument("--report", action="store_true", help="write a dated report below benchmark/reports/")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="modyn-idle-") as folder:
        client = Client(SystemConfig(state_dir=Path(folder) / "state"))
        client.up()  # initialises the folder, with packages that no later start needs
        client.down()
        status = client.up()
        try:
            for number in range(options.datasets):
                data = Path(folder) / f"data-{number}"
                make_files(data, options.files)
                client.register_dataset(_dataset(f"d{number}", data))
            time.sleep(options.settle)
            assert status.pid is not None
            before = [process for pid in tree(status.pid) if (process := look(pid)) is not None]
            started = time.monotonic()
            time.sleep(60 * options.minutes)
            seconds = time.monotonic() - started
            after = [process for pid in tree(status.pid) if (process := look(pid)) is not None]
        finally:
            client.down()
    body = describe(before, after, seconds)
    print(body)
    if options.report:
        command = (
            f"python -m benchmark.idle_stack --minutes {options.minutes:g} --datasets {options.datasets} --files {options.files}"
        )
        print(f"report: {write_report('idle-stack', command, body)}")
    print(f"mebibytes: {_mebibytes(after):.0f}")


@dataclass(frozen=True, slots=True)
class Process:
    """Process of the stack. pss: memory in bytes, with its share of shared pages. seconds: processor time, with that of ended children."""

    pid: int
    parent: int
    name: str
    pss: int
    seconds: float


def tree(root: int) -> list[int]:
    """Return the process `root` and all its descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and (fields := _stat(int(entry.name))):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [root]
    for pid in found:
        found += sorted(children.get(pid, []))
    return found


def look(pid: int) -> Process | None:
    """Return the present values of a process; None: it has ended."""
    fields = _stat(pid)
    if not fields:
        return None
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return None
    pss = next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)
    return Process(pid, int(fields[1]), name_of(command), pss << 10, sum(map(int, fields[11:15])) / _TICKS)


def name_of(command: Sequence[str]) -> str:
    """Return a short name for a command line: module and service, the title of a database's process, or what multiprocessing starts.

    >>> name_of(["/usr/bin/python", "-m", "modyn.rpc", "storage", "--config", "x"]), name_of(["postgres: checkpointer ", ""])
    ('modyn.rpc storage', 'postgres: checkpointer')
    >>> name_of(["modyn.rpc", "storage", "--config", "x"])  # of services that are forked
    'modyn.rpc storage'
    """
    if "-m" in command or command[0].startswith("modyn."):
        module, *rest = command[command.index("-m") + 1 :] if "-m" in command else command
        return " ".join([module, *(word for word in rest[:1] if word and not word.startswith("-"))])
    if "-c" in command and command[0].rpartition("/")[2].startswith("python"):
        return command[command.index("-c") + 1].partition(";")[0].replace("from multiprocessing.", "").replace(" import main", "")
    return Path(command[0].strip()).name if command[0].startswith("/") else command[0].strip()


def describe(before: Iterable[Process], after: Sequence[Process], seconds: float) -> str:
    """Return a table of the processes, with sums."""
    earlier = {process.pid: process for process in before}
    rows = [
        f"| {process.name} | {process.pss / 2**20:.1f} | {(process.pss - earlier[process.pid].pss) / 2**20:+.1f} "
        f"| {100 * (process.seconds - earlier[process.pid].seconds) / seconds:.2f} |"
        for process in sorted(after, key=lambda process: -process.pss)
        if process.pid in earlier
    ]
    rows += [f"| {process.name} (new) | {process.pss / 2**20:.1f} | | |" for process in after if process.pid not in earlier]
    spent = sum(process.seconds for process in after) - sum(process.seconds for process in earlier.values())
    growth = _mebibytes(after) - _mebibytes(earlier.values())
    return "\n".join(
        [
            "| process | PSS, MiB | growth, MiB | % of a core |",
            "|---|---|---|---|",
            *rows,
            "",
            f"{len(after)} processes, PSS {_mebibytes(after):.0f} MiB, {100 * spent / seconds:.2f} % of a core, "
            f"growth {growth:+.1f} MiB in {seconds / 60:.1f} minutes.",
        ]
    )


def make_files(folder: Path, num_files: int) -> None:
    """Add a dataset of small single-sample files."""
    folder.mkdir(parents=True)
    for i in range(num_files):
        (folder / f"{i}.bin").write_bytes(i.to_bytes(4, "little"))
        (folder / f"{i}.label").write_text(str(i % 10))


def _dataset(name: str, folder: Path) -> DatasetConfig:
    return DatasetConfig.model_validate(
        {
            "name": name,
            "base_path": str(folder),
            "file_wrapper": "SingleSampleFileWrapper",
            "file_wrapper_config": {"file_extension": ".bin", "label_file_extension": ".label"},
            "watch": True,
        }
    )


def _mebibytes(processes: Iterable[Process]) -> float:
    return sum(process.pss for process in processes) / 2**20


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the command's name: state, parent, …; empty: the process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


if __name__ == "__main__":
    main()
