"""Results of pipelines on data whose changes are known: real trainings, several seeds.

python -m benchmark.evidence triggers [--stream digits] [--seeds 3] [--policy NAME ...] [--report] [--kept FOLDER]
python -m benchmark.evidence selection [--stream shifted] [--seeds 3] [--policy NAME ...] [--report] [--kept FOLDER]
python -m benchmark.evidence proactive [--stream clicks] [--seeds 3] [--samples 1000000] [--policy SCENARIO ...] [--at-once 1]
    [--report] [--kept FOLDER]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmark.evidence.proactive import NUM_SAMPLES, run_proactive
from benchmark.evidence.proactive_streams import STREAMS as PROACTIVE_STREAMS
from benchmark.evidence.selections import run_selections
from benchmark.evidence.streams import SELECTION_STREAMS, TRIGGER_STREAMS
from benchmark.evidence.triggers import run_streams


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmark.evidence", description=__doc__.splitlines()[0] if __doc__ else None
    )
    commands = parser.add_subparsers(required=True)
    kinds: dict[str, tuple[Callable[..., None], Mapping[str, Any], str]] = {
        "triggers": (run_streams, TRIGGER_STREAMS, "accuracy of the active model against the number of triggers, by policy"),
        "selection": (run_selections, SELECTION_STREAMS, "accuracy of models trained on a part of the samples, by policy"),
        "proactive": (run_proactive, PROACTIVE_STREAMS, "prequential error against training time, by scenario"),
    }
    for name, (run, streams, description) in kinds.items():
        whole = sys.modules[run.__module__].__doc__
        command = commands.add_parser(
            name, help=description, description=whole, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        command.add_argument("--stream", action="append", choices=sorted(streams), help="default: all")
        command.add_argument("--seeds", type=int, default=3, help="seeds of data and training")
        command.add_argument("--policy", action="append", default=[], help="only this one; may be repeated")
        command.add_argument("--report", action="store_true", help="write dated reports with pictures below benchmark/reports/")
        command.add_argument("--kept", type=Path, help="folder that keeps the outcome of each run; those in it are not run again")
        if name == "proactive":
            command.add_argument("--samples", dest="num_samples", type=int, default=NUM_SAMPLES, help="samples of a stream")
            command.add_argument(
                "--at-once",
                type=int,
                default=1,
                help="runs at the same time: seeds, and if there are fewer, scenarios; times are comparable if each has its cores",
            )
        command.set_defaults(run=run, streams=sorted(streams))
    options = vars(parser.parse_args())
    run, streams_known = options.pop("run"), options.pop("streams")
    run(options.pop("stream") or streams_known, options.pop("seeds"), options.pop("policy"), **options)


if __name__ == "__main__":
    main()
