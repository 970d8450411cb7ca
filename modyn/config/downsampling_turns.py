"""Downsampling policies that take turns: the keys `downsampling_list` and `downsampling_thresholds` of `selection_strategy`. Pure functions.

The trainer server runs the policies. If turns depend on a score, the evaluator computes the score, and the supervisor chooses the policy. Each
service checks its own part.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Final

from pydantic import Field

from modyn.config.base import Problem, Section, check_section, refuse, section_at, sections_in
from modyn.errors import InvalidArgumentError

UNNAMED_HANDLER: Final = "Modyn EvalHandler"
"""Name of an evaluation handler without a name."""

_SECTION: Final = "selection_strategy"
_CONFIG: Final = "downsampling_config"
_LIST, _THRESHOLDS = "downsampling_list", "downsampling_thresholds"


class ScoreThresholds(Section):
    """Choice of the policy by the score of the newest model. The index of the policy for a trigger is the number of `values` that the score has
    reached.
    """

    metric: str = Field("Accuracy", min_length=1, description="label of the metric's results; higher values must be better")
    handler: str | None = Field(
        None,
        min_length=1,
        description="name of the evaluation handler whose scores count; none: the only one with `execution_time: after_training`",
    )
    values: list[Annotated[float, Field(allow_inf_nan=False)]] = Field(
        min_length=1,
        description="for each strategy of `downsampling_list` except the first, the score from which it is used; ascending",
    )

    def turn(self, score: float) -> int:
        """Return the position of the policy for a score.

        >>> thresholds = ScoreThresholds(values=[0.6, 0.8])
        >>> [thresholds.turn(score) for score in (0.5, 0.6, 0.79, 1.0)]
        [0, 1, 1, 2]
        """
        return bisect_right(self.values, score)


@dataclass(frozen=True, slots=True)
class DownsamplingTurns:
    """The downsampling policies of a section, and the rule that chooses the policy for a trigger."""

    sections: Mapping[str, Mapping[str, Any]]
    """Sections of the policies by their paths in the file, in the order of their turns; empty: there are no policies."""
    thresholds: tuple[int, ...] | ScoreThresholds = ()
    """Either the numbers of the triggers at which the next policy begins, or thresholds of a score."""
    path: str = f"{_SECTION}.{_THRESHOLDS}"
    """Path of the thresholds in the file."""
    warmup_triggers: int = 0
    """Number of first triggers without a policy."""

    def turn(self, trigger_id: int, decided: int | None = None) -> int | None:
        """Return the position of the policy for a trigger; None: the training uses all samples of the trigger.

        Args: decided: position that the supervisor decided, if turns depend on a score; otherwise None.
        Raises: InvalidArgumentError: turns depend on a score and `decided` is not a valid position, or turns depend on no score and `decided` is set.
        """
        if not isinstance(self.thresholds, ScoreThresholds):
            if decided is not None:
                message = (
                    f"downsampling_turn {decided} is given for trigger {trigger_id}, but no turn depends on a score: leave it out"
                )
                raise InvalidArgumentError(f"{self.path}: {message}")
            return bisect_right(self.thresholds, trigger_id) if self.sections and trigger_id >= self.warmup_triggers else None
        if trigger_id < self.warmup_triggers:
            return None
        allowed = f"a position in {_LIST} from 0 to {len(self.sections) - 1}"
        if decided is None:
            raise InvalidArgumentError(
                f"{self.path}: turns depend on a score, and trigger {trigger_id} has no downsampling_turn: the supervisor sets it for its runs; in "
                f"a request of your own set downsampling_turn, {allowed}"
            )
        if not 0 <= decided < len(self.sections):
            raise InvalidArgumentError(
                f"{self.path}: downsampling_turn {decided} of trigger {trigger_id} is wrong: give {allowed}"
            )
        return decided


def load_turns(selection_strategy: Mapping[str, Any]) -> DownsamplingTurns:
    """Return the turns of a section `selection_strategy`. Raises ConfigError that lists all mistakes, except in the policies' own sections."""
    refuse(check_turns(selection_strategy))
    holder, path = _holder(selection_strategy)
    thresholds = holder.get(_THRESHOLDS) or []
    return DownsamplingTurns(
        sections=dict(_sections(selection_strategy)),
        thresholds=ScoreThresholds.model_validate(thresholds) if isinstance(thresholds, Mapping) else tuple(thresholds),
        path=f"{path}.{_THRESHOLDS}",
        warmup_triggers=int(selection_strategy.get("warmup_triggers") or 0),
    )


def turns_by_score(pipeline: Mapping[str, Any]) -> tuple[ScoreThresholds, str] | None:
    """Return the score thresholds of a pipeline and their path; None: turns do not depend on a score, or `check_turns` finds a mistake."""
    selection = section_at(pipeline, _SECTION)
    if check_turns(selection):
        return None
    turns = load_turns(selection)
    return (turns.thresholds, turns.path) if isinstance(turns.thresholds, ScoreThresholds) else None


def scored_handlers(thresholds: ScoreThresholds, evaluation: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the entries of `evaluation.handlers` that thresholds may refer to: in a valid pipeline exactly one."""
    entries = list(sections_in(evaluation.get("handlers")).values())
    if thresholds.handler is None:
        return [entry for entry in entries if entry.get("execution_time") == "after_training"]
    return [entry for entry in entries if entry.get("name", UNNAMED_HANDLER) == thresholds.handler]


def check_turns(selection: Mapping[str, Any]) -> list[Problem]:
    """Return the problems of the list of policies, of its thresholds and of the type of `downsampling_config`. Policies are not checked."""
    return list(_problems(selection))


def _sections(selection: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the sections of policies with their paths. The list of policies is in `downsampling_config`, as in published pipelines, or next to
    `downsampling_config`.
    """
    holder, path = _holder(selection)
    if holder.get(_LIST) is not None:
        yield from ((f"{path}.{_LIST}.{i}", {"strategy": "No", **section}) for i, section in enumerate(holder[_LIST]))
    elif selection.get(_CONFIG) is not None:
        yield f"{_SECTION}.{_CONFIG}", {"strategy": "No", **selection[_CONFIG]}


def _holder(selection: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    """Return the mapping that may contain a list of policies, and the path of the mapping."""
    inner = selection.get(_CONFIG)
    if isinstance(inner, Mapping) and (_LIST in inner or _THRESHOLDS in inner):
        return inner, f"{_SECTION}.{_CONFIG}"
    return selection, _SECTION


def _problems(selection: Mapping[str, Any]) -> Iterator[Problem]:
    config = selection.get(_CONFIG)
    if config is not None and not isinstance(config, Mapping):
        yield Problem(f"{_SECTION}.{_CONFIG}", f"{config!r} is wrong: this is a mapping with the key `strategy`")
        return
    holder, path = _holder(selection)
    sections, thresholds = holder.get(_LIST), holder.get(_THRESHOLDS)
    if sections is None:
        if thresholds is not None:
            yield Problem(f"{path}.{_THRESHOLDS}", f"needs {_LIST}, the strategies that take turns")
        return
    if holder is selection and config is not None:
        yield Problem(f"{path}.{_LIST}", f"replaces {_CONFIG}; remove one of the two")
    for name in holder.keys() - {_LIST, _THRESHOLDS} if holder is config else ():
        yield Problem(f"{path}.{name}", f"there is no such key next to {_LIST}: each strategy of the list has its own options")
    if not isinstance(sections, list) or not sections or not all(isinstance(section, Mapping) for section in sections):
        yield Problem(f"{path}.{_LIST}", f"{sections!r} is wrong: this is a list of mappings with the key `strategy`")
        return
    check = _score_problems if isinstance(thresholds, Mapping) else _number_problems
    yield from check(thresholds, len(sections), f"{path}.{_THRESHOLDS}")


def _number_problems(thresholds: Any, num_policies: int, path: str) -> Iterator[Problem]:
    whole = isinstance(thresholds, list) and all(type(number) is int and number >= 0 for number in thresholds)
    if thresholds is not None and not whole:
        message = "this is a list of trigger numbers, from 0, or a mapping with `values`, for turns by a score"
        yield Problem(path, f"{thresholds!r} is wrong: {message}")
        return
    numbers: list[int] = thresholds or []
    if len(numbers) != num_policies - 1 or any(one >= other for one, other in pairwise(numbers)):
        yield Problem(
            path,
            f"{numbers} is wrong: {num_policies} strategies need {num_policies - 1} trigger numbers, each larger than the one before; at each, the "
            "next strategy begins",
        )


def _score_problems(thresholds: Any, num_policies: int, path: str) -> Iterator[Problem]:
    if found := check_section(ScoreThresholds, thresholds, path):
        yield from found
        return
    values = ScoreThresholds.model_validate(thresholds).values
    if len(values) != num_policies - 1 or any(one >= other for one, other in pairwise(values)):
        yield Problem(
            f"{path}.values",
            f"{values} is wrong: {num_policies} strategies need {num_policies - 1} scores, each larger than the one before; from each, the next "
            "strategy is used",
        )
