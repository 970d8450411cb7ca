"""The version that a rollback promotes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from modyn.model_storage.client import Promotion
from modyn.model_storage.promotions import rollback_target
from modyn.records import RunId


def entry(action: str, model_id: int, before_id: int | None = None) -> Promotion:
    return Promotion(RunId("run-1"), model_id, action, before_id, "", "test", 0.0)


def test_a_version_that_was_promoted_before_there_was_a_trail_is_gone_back_to() -> None:
    assert rollback_target([entry("promote", 2, 1)], lambda _: True) == 1
    assert rollback_target([], lambda _: True) is None


@given(st.lists(st.one_of(st.integers(1, 5), st.none()), max_size=30), st.sets(st.integers(1, 5)))
def test_rollbacks_undo_promotions_like_a_stack(steps: list[int | None], deleted: set[int]) -> None:
    """A number promotes; None goes back, as the store does: to the target, if there is one."""
    trail: list[Promotion] = []
    stack: list[int] = []
    for step in steps:
        current = stack[-1] if stack else None
        if step is None:
            target = rollback_target(trail, lambda model_id: model_id not in deleted)
            expected = next((found for found in reversed(stack[:-1]) if found not in deleted and found != current), None)
            assert target == expected
            if target is not None:
                while stack[-1] != target:
                    stack.pop()
                trail.append(entry("rollback", target, current))
        elif step != current:
            stack.append(step)
            trail.append(entry("promote", step, current))
        trail.append(entry("refuse", 3, stack[-1] if stack else None))  # changes nothing
