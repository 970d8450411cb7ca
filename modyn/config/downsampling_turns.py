"""Several downsampling policies in turn: the keys `downsampling_list` and `downsampling_thresholds` of `selection_strategy`. Pure.

The trainer server acts on the policies, the supervisor on the scores that decide between them, and the evaluator computes these scores: each
checks its part.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Final

from pydantic import Field

from modyn.config.base import Problem, Section, check_section, refuse
from modyn.errors import InvalidArgumentError

UNNAMED_HANDLER: Final = "Modyn EvalHandler"
"""Name of an evaluation handler that has none."""

_SECTION: Final = "selection_strategy"
_CONFIG: Final = "downsampling_config"
_LIST, _THRESHOLDS = "downsampling_list", "downsampling_thresholds"


class ScoreThresholds(Section):
    """Turns by the score of the newest model: the policy at the index of how many of the values the score has reached serves the trigger."""

    metric: str = Field(
        "Accuracy", min_length=1, description="the metric, by the label of its results; high values must be the good ones"
    )
    handler: str | None = Field(
        None,
        min_length=1,
        description="the evaluation handler whose scores count, by its name; none = the only one with `execution_time: after_training`",
    )
    values: list[Annotated[float, Field(allow_inf_nan=False)]] = Field(
        min_length=1,
        description="for each strategy of `downsampling_list` but the first, the score from which it serves; ascending",
    )

    def turn(self, score: float) -> int:
        """The position of the policy that serves at a score.

        >>> thresholds = ScoreThresholds(values=[0.6, 0.8])
        >>> [thresholds.turn(score) for score in (0.5, 0.6, 0.79, 1.0)]
        [0, 1, 1, 2]
        """
        return bisect_right(self.values, score)


@dataclass(frozen=True, slots=True)
class DownsamplingTurns:
    """The downsampling policies of a section, and what decides which of them serves a trigger."""

    sections: Mapping[str, Mapping[str, Any]]
    """Of the policies by their paths in the file, in the order of their turns; empty: there are none."""
    thresholds: tuple[int, ...] | ScoreThresholds = ()
    """Numbers of the triggers at which the next one takes its turn, or scores."""
    path: str = f"{_SECTION}.{_THRESHOLDS}"
    """Of the thresholds in the file."""
    warmup_triggers: int = 0
    """So many first triggers are served by no policy."""

    def turn(self, trigger_id: int, decided: int | None = None) -> int | None:
        """The position of the policy that serves a trigger; None: all of its samples are trained on.

        Args: decided: where the turns go by a score, what the supervisor has decided for this trigger; else None.
        Raises: InvalidArgumentError: the turns go by a score and nothing is decided, or they do not and something is.
        """
        if not isinstance(self.thresholds, ScoreThresholds):
            if decided is not None:
                message = (
                    f"downsampling_turn {decided} is given for trigger {trigger_id}, and no turn goes by a score: leave it out"
                )
                raise InvalidArgumentError(f"{self.path}: {message}")
            return bisect_right(self.thresholds, trigger_id) if self.sections and trigger_id >= self.warmup_triggers else None
        if trigger_id < self.warmup_triggers:
            return None
        allowed = f"a position in {_LIST} from 0 to {len(self.sections) - 1}"
        if decided is None:
            raise InvalidArgumentError(
                f"{self.path}: turns go by a score, and for trigger {trigger_id} none is decided: the supervisor does so for its runs; in a request "
                f"of your own set downsampling_turn, {allowed}"
            )
        if not 0 <= decided < len(self.sections):
            raise InvalidArgumentError(
                f"{self.path}: downsampling_turn {decided} of trigger {trigger_id} is wrong: give {allowed}"
            )
        return decided


def load_turns(selection_strategy: Mapping[str, Any]) -> DownsamplingTurns:
    """The turns of a section `selection_strategy`, whose policies are not checked. Raises ConfigError that lists every other mistake."""
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
    """The thresholds of a whole pipeline and their path, if its turns go by a score; None: they do not, or `check_turns` finds a mistake."""
    selection = pipeline.get(_SECTION)
    if not isinstance(selection, Mapping) or check_turns(selection):
        return None
    turns = load_turns(selection)
    return (turns.thresholds, turns.path) if isinstance(turns.thresholds, ScoreThresholds) else None


def scored_handlers(thresholds: ScoreThresholds, evaluation: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The entries of `evaluation.handlers` that thresholds may mean: in a pipeline without mistakes exactly one."""
    handlers = evaluation.get("handlers")
    entries = [entry for entry in handlers if isinstance(entry, Mapping)] if isinstance(handlers, list) else []
    if thresholds.handler is None:
        return [entry for entry in entries if entry.get("execution_time") == "after_training"]
    return [entry for entry in entries if entry.get("name", UNNAMED_HANDLER) == thresholds.handler]


def check_turns(selection: Mapping[str, Any]) -> list[Problem]:
    """What is wrong with the list of policies and its thresholds, or with the kind of `downsampling_config`; not what is wrong in a policy."""
    return list(_problems(selection))


def _sections(selection: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The sections of policies with their paths. A list stands in `downsampling_config`, as in published pipelines, or beside it."""
    holder, path = _holder(selection)
    if holder.get(_LIST) is not None:
        yield from ((f"{path}.{_LIST}.{i}", {"strategy": "No", **section}) for i, section in enumerate(holder[_LIST]))
    elif selection.get(_CONFIG) is not None:
        yield f"{_SECTION}.{_CONFIG}", {"strategy": "No", **selection[_CONFIG]}


def _holder(selection: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    """The mapping that may hold a list of policies, and its path."""
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
        yield Problem(f"{path}.{_LIST}", f"stands in place of {_CONFIG}; remove one of the two")
    for name in holder.keys() - {_LIST, _THRESHOLDS} if holder is config else ():
        yield Problem(f"{path}.{name}", f"there is no such key beside {_LIST}: each strategy of the list has its own options")
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
            f"{numbers} is wrong: {num_policies} strategies need {num_policies - 1} trigger numbers, each larger than the one before: that at which "
            "the next strategy begins",
        )


def _score_problems(thresholds: Any, num_policies: int, path: str) -> Iterator[Problem]:
    if found := check_section(ScoreThresholds, thresholds, path):
        yield from found
        return
    values = ScoreThresholds.model_validate(thresholds).values
    if len(values) != num_policies - 1 or any(one >= other for one, other in pairwise(values)):
        yield Problem(
            f"{path}.values",
            f"{values} is wrong: {num_policies} strategies need {num_policies - 1} scores, each larger than the one before: that from which the "
            "next strategy serves",
        )
