"""Evidence is kept as records and is read again as it was."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from modyn.errors import UserCodeError
from modyn.proto import supervisor_pb2
from modyn.records import SampleBatch
from modyn.rpc.wire import from_message, to_message
from modyn.supervisor.evidence import Evidence, EvidenceKind, is_flagged, required_value, value_of
from modyn.supervisor.triggers import CheckContext, build_trigger
from modyn.supervisor.triggers.base import Check, CheckRecord
from modyn.supervisor.triggers.cost import DataIncorporationLatencyCostTrigger, LatencyCostConfig
from modyn.supervisor.triggers.dynamic_schedule import DynamicScheduleConfig, DynamicScheduleTrigger
from modyn.testing.decisions import decide

DATASET = {"evaluation": {"dataset": {"dataset_id": "d", "batch_size": 4, "metrics": [{"name": "Accuracy"}]}}}
WARM_UP = {"warmup_intervals": 1, "warmup_policy": {"id": "DataAmountTrigger", "num_samples": 5}}
COUNTING = {"id": "StaticNumberMisclassificationCriterion", "avoidable_misclassification_threshold": 3}
MMD = Evidence("mmd", 0.2, unusual=True, p_value=0.03, level=0.05, seconds=0.1)
EVIDENCE = (
    Evidence.count("reference_samples", 50),
    MMD,
    Evidence("ks", 0.1, unusual=False),
    Evidence.flag("unusual"),
    Evidence.detail("calibration.accuracy", 0.9),
    Evidence("drift", 1.0, kind=EvidenceKind.VOTE, subtrigger="inner"),
)
NAMED = {
    "reference_samples": 50.0,
    "mmd": 0.2,
    "mmd.seconds": 0.1,
    "mmd.p_value": 0.03,
    "mmd.p_value.threshold": 0.05,
    "mmd.unusual": 1.0,
    "ks": 0.1,
    "ks.unusual": 0.0,
    "unusual": 1.0,
    "calibration.accuracy": 0.9,
    "inner/drift.vote": 1.0,
}


def test_evidence_is_the_same_after_the_journal_and_the_wire() -> None:
    record = CheckRecord(10, True, EVIDENCE, 0.5, timestamp=7)
    assert CheckRecord.from_mapping(json.loads(json.dumps(record.to_mapping()))) == record
    message = supervisor_pb2.CheckRecord.FromString(to_message(record, supervisor_pb2.CheckRecord).SerializeToString())
    assert from_message(message, CheckRecord) == record


def test_tables_name_each_number() -> None:
    assert CheckRecord(10, True, EVIDENCE).numbers == NAMED
    judged = [Evidence("Accuracy", 0.8, 0.7, False, criterion=name, subtrigger="a") for name in ("static", "dynamic")]
    assert list(CheckRecord(10, True, judged).numbers) == [
        "a/Accuracy", "a/Accuracy.static.threshold", "a/Accuracy.static.unusual",
        "a/Accuracy.dynamic.threshold", "a/Accuracy.dynamic.unusual",
    ]  # fmt: skip
    same = [Evidence("unusual", 0.5), Evidence.flag("unusual"), Evidence("mmd.threshold", 3.0), Evidence("mmd", 0.2, 0.1)]
    assert list(CheckRecord(10, True, same).numbers.values()) == [0.5, 1.0, 3.0, 0.2, 0.1], "no number hides another"


def test_a_policy_finds_its_own_evidence_and_not_that_of_a_subtrigger() -> None:
    inner = [one.of_subtrigger("inner") for one in EVIDENCE]
    assert (value_of(EVIDENCE, "mmd"), value_of(inner, "mmd"), value_of(EVIDENCE, "unusual")) == (0.2, None, None)
    assert is_flagged(EVIDENCE, "unusual")
    assert not is_flagged(inner, "unusual")
    assert tuple(one.within("inner") for one in inner) == EVIDENCE
    assert [one.of_subtrigger("outer").is_of_subtrigger("outer") for one in inner] == [True] * len(inner)
    assert inner[1].of_subtrigger("outer").name == "outer/inner/mmd"


@pytest.mark.parametrize("evidence", [{"mmd": 0.2}, ["mmd"]])
def test_other_evidence_of_a_plug_in_is_refused(evidence: object) -> None:
    with pytest.raises(UserCodeError, match="a sequence of `Evidence`"):
        Check(True, evidence)  # type: ignore[arg-type]
    with pytest.raises(UserCodeError, match="must be a bool"):
        Check(1)  # type: ignore[arg-type]
    with pytest.raises(UserCodeError, match="`value` a number"):
        Evidence("mmd", "0.2")  # type: ignore[arg-type]


class Forgetful(DataIncorporationLatencyCostTrigger):
    """A plug-in that measures no regret."""

    def regret(self, context: CheckContext) -> Sequence[Evidence]:
        return []


def test_evidence_that_a_policy_decides_by_is_never_taken_as_0() -> None:
    assert required_value(EVIDENCE, "reference_samples", EvidenceKind.COUNT) == 50
    with pytest.raises(UserCodeError, match="lacks the value 'regret', .* there: reference_samples, mmd, ks, unusual"):
        required_value(EVIDENCE, "regret")
    times = np.arange(30)
    options = LatencyCostConfig(evaluation_interval_data_points=5, incorporation_delay_per_training_second=20)
    with pytest.raises(UserCodeError, match="lacks the value 'prediction_rate', .* there: nothing"):
        DynamicScheduleTrigger(DynamicScheduleConfig(evaluation_interval_data_points=5)).judge([], CheckContext(5, 5))
    with pytest.raises(UserCodeError, match="lacks the value 'regret', .* there: forecast_training_s"):
        decide(Forgetful(options), [SampleBatch(times, times, times)])


@pytest.mark.parametrize(
    ("id_", "options", "missing"),
    [
        ("AvoidableMisclassificationCostTrigger", {"avoidable_misclassification_latency_per_training_second": 1, **WARM_UP, **DATASET}, "regret"),
        ("PerformanceTrigger", {"decision_criteria": {"many": COUNTING}, **DATASET}, "many"),
        ("StreamDetectorTrigger", {"detector": {"id": "ADWIN"}, **DATASET}, "evaluated_samples"),
    ],
)  # fmt: skip
def test_a_replayed_check_without_a_number_is_refused(id_: str, options: dict[str, Any], missing: str) -> None:
    policy = build_trigger({"id": id_, "evaluation_interval_data_points": 5, **options})
    times = np.arange(5)
    batch = SampleBatch(times, times, times)
    assert policy.next_check(batch, -1) == 5
    policy.observe(batch)
    record = CheckRecord(5, False, [Evidence.flag("unusual")], memory={"detector": {}})
    with pytest.raises(UserCodeError, match=f"lacks the [a-z]+ '{missing}'"):
        policy.checked(record)
