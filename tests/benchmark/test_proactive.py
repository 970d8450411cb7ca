"""What `benchmark.evidence proactive` measures and writes, on few samples."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmark.evidence.proactive import Outcome, run_proactive, scenarios, table_of
from benchmark.evidence.proactive_streams import DRAW, STREAMS


def test_a_table_has_the_medians_of_all_seeds() -> None:
    def outcome(scenario: str, seed: int, error: float, train_s: float) -> Outcome:
        return Outcome("clicks", scenario, seed, 1000, error, train_s, 0.5, 9.0, 3, 2000, [(10, error)])

    outcomes = [outcome("C: proactive, uniform", seed, 0.1 * seed, 2.0 + seed) for seed in range(3)]
    outcomes += [outcome("B: retraining, cold", seed, 0.5, 4 * (2.0 + seed)) for seed in range(3)]
    rows = [line.strip("| ").split(" | ") for line in table_of(outcomes).splitlines()[2:]]
    assert rows[0] == ["C: proactive, uniform", "0.1000 (0.0000–0.2000)", "3.0", "0.5", "2,000", "1.00"]
    assert rows[1][-1] == "4.00"


@pytest.mark.parametrize("name", STREAMS)
def test_streams_are_drawn_from_their_seeds_and_drift(name: str) -> None:
    def drawn(time: float, seed: int) -> np.ndarray:
        rows = np.empty(2000, STREAMS[name].record)
        DRAW[name](rows, time, np.random.default_rng(1), np.random.default_rng(seed))
        return rows

    np.testing.assert_array_equal(drawn(0.5, 3), drawn(0.5, 3))
    assert not np.array_equal(drawn(0.5, 3), drawn(0.5, 4))
    early, late = drawn(0.0, 3), drawn(1.0, 3)
    assert (early["label"] != late["label"]).mean() > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("name", STREAMS)
def test_scenarios_run(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = ["C: proactive, uniform", "B: retraining, warm"]
    assert set(chosen) < set(scenarios(1000))
    run_proactive([name], 1, chosen, report=False, kept=tmp_path, num_samples=9000)
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert [row.split(" | ")[0].strip("| ") for row in rows[1:]] == ["B: retraining, warm", "C: proactive, uniform"]
