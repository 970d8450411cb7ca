"""A production run with windows of seasons decides on live data as an experiment does on the same data later."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from modyn.config.system import SystemConfig
from modyn.storage.client import NewRecord
from modyn.supervisor.journal.records import RunMode, RunOptions
from modyn.testing.fake_evaluator import drift_by_windows
from modyn.testing.services import InMemoryServices, pipeline_yaml, wait_until_terminal
from modyn.testing.waiting import eventually
from tests.support.trigger_sections import SECTIONS

HOUR, NUM_SAMPLES = 3600, 240


@pytest.mark.parametrize(
    "name", ["DataDriftTrigger of whole seasons", pytest.param("DataDriftTrigger of the same phase", marks=pytest.mark.slow)]
)
def test_live_samples_are_compared_as_those_of_a_replay(name: str, system_config: SystemConfig, tmp_path: Path) -> None:
    services = InMemoryServices(tmp_path)
    services.storage.add_dataset("train", records=True)
    services.evaluator.drift = lambda request: drift_by_windows(
        replace(request, question=replace(request.question, model_id=None))
    )
    yaml, done = pipeline_yaml(trigger=SECTIONS[name]), list[Any]()
    with services.supervise(system_config) as runs:
        run_id = runs.submit(yaml, "p.yaml", RunOptions(RunMode.PRODUCTION)).run_id
        for start, stop in ((0, 7), (7, 90), (90, 91), (91, NUM_SAMPLES)):
            arrived = [NewRecord(f"key-{at}", b"x", at // 40 % 3, at * 3 * HOUR) for at in range(start, stop)]
            services.storage.client().append_records("train", arrived)
            eventually(lambda expected=stop: runs.journal.run(run_id).num_samples == expected)  # type: ignore[misc]
        runs.finish(run_id)
        wait_until_terminal(runs, run_id)
        replayed = runs.submit(yaml, "p.yaml", RunOptions(RunMode.EXPERIMENT)).run_id
        wait_until_terminal(runs, replayed)
        for found in (run_id, replayed):
            checks = [(check.position, check.fires, check.numbers) for check in runs.journal.checks(found)]
            done.append(([trigger.position for trigger in runs.journal.triggers(found)], checks))
    assert done[0] == done[1]
    assert len(done[0][0]) > 1
    assert any("mmd" in evidence for _, _, evidence in done[0][1])
