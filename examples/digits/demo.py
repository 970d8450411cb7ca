"""`make demo`: make data, run a pipeline and write a report, with separate services that are stopped at the end.

python -m examples.digits.demo [--folder demo-data] [--keep]
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from examples.digits.make_data import make_digits

HERE = Path(__file__).parent
MODYN = [sys.executable, "-m", "modyn.cli.main"]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Replay ten years of handwritten digits through all services of Modyn.")
    parser.add_argument("--folder", type=Path, default=Path("demo-data"), help="where images, state and report go; emptied first")
    parser.add_argument(
        "--keep", action="store_true", help="leave the services running, to look around with `modyn --state-dir ...`"
    )
    options = parser.parse_args(arguments)
    folder: Path = options.folder.absolute()
    started = time.monotonic()
    clear(folder)
    step(f"making the dataset: {make_digits(folder / 'images'):,} images in {folder / 'images'}")
    os.environ["MODYN_STATE_DIR"] = str(folder / "state")
    try:
        step("starting PostgreSQL, Redis and the six services")
        modyn("up")
        for split in ("train", "test"):
            step(f"registering digits-{split}")
            formats = ["-o", "file_extension=.png", "-o", "label_file_extension=.label"]
            modyn(
                "data",
                "register",
                f"digits-{split}",
                str(folder / "images" / split),
                "--format",
                "SingleSampleFileWrapper",
                *formats,
            )
        step("running examples/digits/pipeline.yaml in experiment mode")
        modyn("run", str(HERE / "pipeline.yaml"), "--experiment", "--report", str(folder / "report.html"))
    except subprocess.CalledProcessError as error:
        sys.stderr.write(
            f"\nThe demo stopped: `{' '.join(error.cmd[1:])}` ended with {error.returncode}. Logs: {folder / 'state' / 'logs'}\n"
        )
        return 1
    finally:
        if not options.keep:
            step("stopping everything")
            modyn("down")
    print(f"\nDone in {time.monotonic() - started:.0f} s. Open the report: {folder / 'report.html'}")
    if options.keep:
        print(f"The services run on; look around: .venv/bin/modyn --state-dir {folder / 'state'} ps")
    return 0


def modyn(*arguments: str) -> None:
    """Run a `modyn` command in a new process. Raises CalledProcessError if the command fails."""
    subprocess.run([*MODYN, *arguments], check=True)


def clear(folder: Path) -> None:
    """Remove the folder of an earlier demo. Raises SystemExit if the folder does not belong to a demo."""
    if not folder.exists():
        return
    if any(folder.iterdir()) and not (folder / "images").is_dir():
        raise SystemExit(f"{folder} exists and is not a demo's folder; give another one with --folder")
    subprocess.run([*MODYN, "--state-dir", str(folder / "state"), "down"], check=True, stderr=subprocess.DEVNULL)
    shutil.rmtree(folder)


def step(text: str) -> None:
    sys.stderr.write(f"\n\033[1m==> {text}\033[0m\n" if sys.stderr.isatty() else f"\n==> {text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    raise SystemExit(main())
