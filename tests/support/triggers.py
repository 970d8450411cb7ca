"""Decisions of trigger policies on a stream in one batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from modyn.records import SampleBatch
from modyn.supervisor.triggers import TriggerContext, build_trigger
from modyn.supervisor.triggers.base import CheckRecord
from modyn.testing.decisions import decide
from modyn.testing.fake_evidence import FakeEvidence


def checks(
    section: Mapping[str, Any], samples: SampleBatch, source: FakeEvidence | None = None, *, asks_twice: bool = True
) -> list[CheckRecord]:
    """Return all checks of the policy that a `trigger` section describes. Args: asks_twice: see `decide`."""
    policy = build_trigger(section, TriggerContext(seed=3))
    return decide(policy, [samples], source=source or FakeEvidence(samples), asks_twice=asks_twice)


def fired(records: Sequence[CheckRecord]) -> list[int]:
    """Positions at which a policy fired."""
    return [record.position for record in records if record.fires]
