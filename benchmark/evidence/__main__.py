"""What comes out of pipelines on data whose changes are known: real trainings, several seeds.

python -m benchmark.evidence triggers [--stream digits] [--seeds 3] [--policy NAME ...] [--report]
"""

from __future__ import annotations

import argparse

from benchmark.evidence.streams import STREAMS
from benchmark.evidence.triggers import run_streams


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmark.evidence", description=__doc__.splitlines()[0] if __doc__ else None
    )
    commands = parser.add_subparsers(required=True)
    triggers = commands.add_parser("triggers", help="accuracy of the active model against the number of triggers, by policy")
    triggers.add_argument("--stream", action="append", choices=sorted(STREAMS), help="default: all")
    triggers.add_argument("--seeds", type=int, default=3, help="seeds of data and training")
    triggers.add_argument("--policy", action="append", default=[], help="only this one; may be repeated")
    triggers.add_argument("--report", action="store_true", help="write dated reports with pictures below benchmark/reports/")
    options = parser.parse_args()
    run_streams(options.stream or sorted(STREAMS), options.seeds, options.policy, report=options.report)


if __name__ == "__main__":
    main()
