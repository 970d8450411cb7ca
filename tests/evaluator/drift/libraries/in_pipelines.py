"""The metrics of alibi-detect and evidently in pipelines on real services, which are killed: all of a library together,
and in `make test-all` each alone.

Run by `make test-extras` in the environment of the library, where modyn is installed as pip installs it, with the versions that the library needs.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import modyn
from modyn.testing.stack import stack_on
from tests.evaluator.drift.libraries.no_network import for_all_processes
from tests.support.drifting_data import drift, drifting_pipeline
from tests.support.killed_checks import DATASET, drifting_stack, run_with_kills
from tests.support.killed_stack import KilledStack

pytestmark = pytest.mark.timeout(600)

METRICS: dict[str, list[dict[str, Any]]] = {
    "alibi": [
        {"id": "AlibiDetectMmdDriftMetric", "num_permutations": 20},
        {"id": "AlibiDetectKSDriftMetric", "correction": "fdr"},
        {"id": "AlibiDetectCVMDriftMetric"},
    ],
    "evidently": [
        {"id": "EvidentlyModelDriftMetric"},
        {"id": "EvidentlyRatioDriftMetric"},
        {"id": "EvidentlySimpleDistanceDriftMetric", "num_pca_component": 3},
        {"id": "EvidentlyHellingerDistanceDriftMetric"},
    ],
}
OF_LIBRARY = METRICS["alibi" if find_spec("alibi_detect") else "evidently"]
TRIGGERS = {"all": drift(*OF_LIBRARY), **{metric["id"]: drift(metric) for metric in OF_LIBRARY}}


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Attempts of the stack's processes to reach other machines."""
    folder = tmp_path_factory.mktemp("no-network")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
        yield for_all_processes(folder)


@pytest.fixture(scope="module")
def killed(tried: Path) -> Iterator[KilledStack]:
    """A stack whose runs resume by themselves."""
    with (
        tempfile.TemporaryDirectory(prefix="modyn-", ignore_cleanup_errors=True) as folder,
        stack_on(Path(folder), supervisor={"resume_on_start": True}) as stack,
        stack.client() as client,
    ):
        yield drifting_stack(stack, client)


def test_modyn_is_installed_here() -> None:
    """modyn is not imported from the working tree, whose C++ core belongs to another environment."""
    assert "site-packages" in Path(modyn.__file__).parts


def test_a_pipeline_with_all_metrics_is_valid(killed: KilledStack) -> None:
    path = killed.stack.folder / "checked.yaml"
    path.write_text(drifting_pipeline(DATASET, TRIGGERS["all"]))
    done = killed.stack.modyn("check", path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "name", ["all", *(pytest.param(name, marks=pytest.mark.exhaustive) for name in TRIGGERS if name != "all")]
)
def test_kills_change_no_check_and_no_trigger(killed: KilledStack, tried: Path, name: str) -> None:
    assert run_with_kills(killed, TRIGGERS[name]) > 0
    assert not tried.exists(), tried.read_text()
