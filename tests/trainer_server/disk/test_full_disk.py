"""A disk that is full for a while: trainings end, with the reason that they really have."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent.parent

PROGRAM = """
import resource, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from modyn.config.system import SystemConfig
from modyn.log_files import protect_output
from modyn.records import RunId
from modyn.rpc.logs import configure_logs, get_logger
from modyn.trainer_server.client import TrainingRequest
from modyn.trainer_server.trainings import Trainings
from modyn.workers import WorkerPool

def main():
    protect_output()
    configure_logs("trainer_server")
    pool = WorkerPool(1, preload=())
    pool.warm_up()
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))  # no file can grow
    trainings = Trainings(SystemConfig(state_dir=Path(sys.argv[1])), pool, pool, lambda run_id, trigger_id: None)
    trainings.task = "loud_task:fail_loudly"
    run_id = RunId("digits-0001")
    trainings.start(TrainingRequest(run_id, 0, {"model": {}, "training": {}, "data": {}}))
    *_, last = trainings.table.watch((run_id, 0))
    pool.close()
    sys.stdout.write(f"{last.state} {last.error_reason} {last.error}")

main()
"""


def test_a_training_ends_while_no_log_can_be_written(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    with log.open("ab") as file:
        command = [sys.executable, "-c", PROGRAM, str(tmp_path), str(HERE)]
        done = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=file, text=True, timeout=120)
    assert done.returncode == 0
    assert done.stdout.startswith("failed DATA"), done.stdout
    assert "record 7 is short" in done.stdout
    assert "of its log could not be written: File too large" in done.stdout
