"""Checks that are slower than the arrival of data, in a production run on real services: the run reports this, and checks never accumulate."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from modyn.supervisor.client import RunMode, RunState
from modyn.testing.stack import RunningStack, stack_on, tiny_dataset_config, tiny_pipeline, write_tiny_files
from modyn.testing.waiting import eventually
from tests.support.plugins import write_metadata

EVERY, A_FILE = 10, 100
WARNING = "checks take longer than the data takes to arrive: "
SLOW = """
import time
from pathlib import Path

from modyn.config.base import Section
from modyn.evaluator.drift import Drift, DriftMetric

FOLDER = Path(__file__).parent


class Sleeps(DriftMetric):
    Config = Section

    def compare(self, reference, current):
        with open(FOLDER / "compared", "a") as file:
            file.write("begins\\n")
        if not (FOLDER / "is fast").exists():
            time.sleep(0.5)
        with open(FOLDER / "compared", "a") as file:
            file.write("ends\\n")
        return Drift(0.0)
"""


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("slow")
    (folder / "slow.py").write_text(SLOW)
    write_metadata(folder, "slow", {"modyn.drift_metrics": {"Sleeps": "slow:Sleeps"}})
    return folder


@pytest.fixture(scope="module")
def stack(plugin: Path) -> Iterator[RunningStack]:
    """A stack whose production runs examine waiting samples four times a second."""
    with (
        tempfile.TemporaryDirectory(prefix="modyn-", ignore_cleanup_errors=True) as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("PYTHONPATH", str(plugin), prepend=os.pathsep)
        with stack_on(Path(folder), supervisor={"lag_look_s": 0.25}) as stack:
            yield stack


@pytest.mark.slow
def test_slow_checks_are_shown_and_are_made_one_after_the_other(stack: RunningStack, plugin: Path) -> None:
    folder = stack.folder / "data" / "arriving"
    write_tiny_files(folder, num_samples=A_FILE, num_files=1)
    criterion = {"id": "ThresholdDecisionCriterion", "threshold": 0.1}
    trigger: dict[str, Any] = {
        "id": "DataDriftTrigger",
        "on": "labels",
        "evaluation_interval_data_points": EVERY,
        "metrics": {"far": {"id": "Sleeps", "decision_criterion": criterion}},
    }
    path = stack.folder / "arriving.yaml"
    path.write_text(tiny_pipeline("arriving", trigger=trigger))
    num_files, seen = 1, 0
    with stack.client() as client:
        client.register_dataset(tiny_dataset_config("arriving", folder, watch=True))
        client.ingest("arriving")
        run_id = client.run(path, mode=RunMode.PRODUCTION).run_id
        eventually((plugin / "compared").exists)

        def warns() -> bool:
            """Let the samples of ten checks arrive during each check."""
            nonlocal num_files, seen
            if (made := (plugin / "compared").read_text().count("ends")) > seen:
                seen = made
                write_tiny_files(folder, num_samples=A_FILE, num_files=1, first_day=num_files)
                num_files += 1
            return WARNING in client.show(run_id).message

        eventually(warns)
        shown = stack.modyn("show", run_id)
        assert WARNING in shown.stdout + shown.stderr
        assert "samples wait; check less often" in shown.stdout + shown.stderr
        (plugin / "is fast").touch()
        total = num_files * A_FILE
        eventually(lambda: client.checks(run_id)["position"].max() == total)
        eventually(lambda: WARNING not in client.show(run_id).message)
        client.finish(run_id)
        assert client.wait(run_id).state is RunState.FINISHED
        positions = client.checks(run_id)["position"].tolist()
    watched = stack.modyn("watch", run_id)
    assert WARNING in watched.stdout + watched.stderr
    assert "the warning no longer applies" in watched.stdout + watched.stderr
    assert positions == list(range(EVERY, total + 1, EVERY)), "none is left out, none made twice"
    lines = (plugin / "compared").read_text().split()
    assert lines == ["begins", "ends"] * (len(lines) // 2), "none begins before the one before it has ended"
    assert len(lines) // 2 == len(positions) - 1, "the first check has nothing to compare with"
