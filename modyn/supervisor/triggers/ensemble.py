"""Fires when enough of several policies have voted yes."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Annotated, Any, ClassVar, Final, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from modyn.config.base import Matching, PlacedError, Problem, Section, Severity, sections_in
from modyn.errors import ConfigError, CorruptStateError, ModynError, UserCodeError
from modyn.evaluator.client import DriftQuestion
from modyn.records import SampleBatch
from modyn.registry import load_object
from modyn.supervisor.criteria.votes import AllVote, AtLeastN, MajorityVote
from modyn.supervisor.evidence import Evidence, EvidenceKind
from modyn.supervisor.triggers import build_trigger, check_trigger_section
from modyn.supervisor.triggers.base import (
    Check,
    CheckContext,
    CheckRecord,
    SeriesName,
    Trigger,
    TriggerContext,
    TriggerOutcome,
    next_due,
    read_state,
)
from modyn.supervisor.triggers.measures.shared_evidence import SharedEvidence

MAX_LEVELS: Final = 5
"""Largest depth of nested ensembles."""
_SUBTRIGGERS: Final = "subtriggers"
_NEXT_SAMPLE: Final = (
    "a subtrigger was due after the very last sample; all of them are asked once there is a next one, by which one decides"
)
_VERSION: Final = 1


class CustomVote(Section):
    """A vote by an importable function."""

    id: Literal["Custom"] = Field("Custom", description="which vote")
    function: Annotated[str, Matching(r"^\w+(\.\w+)*:\w+(\.\w+)*$", "write 'package.module:function'")] = Field(
        description="importable name of a function that is installed where the supervisor runs. It takes a dictionary of the votes (true or "
        "false) of all subtriggers by name, and returns true or false, always the same for the same votes",
        examples=["my_package.votes:drift_and_enough_data"],
    )


class EnsembleConfig(Section):
    """Fires when enough of several policies have voted yes."""

    subtriggers: dict[SeriesName, dict[str, Any]] = Field(
        min_length=1,
        description="the policies that vote, by names of letters, digits, _ and -; each is a `trigger` section of any policy, including "
        "ensembles",
    )
    ensemble_strategy: Annotated[MajorityVote | AtLeastN | AllVote | CustomVote, Field(discriminator="id")] = Field(
        default_factory=MajorityVote, description="how the votes become one verdict"
    )

    @model_validator(mode="after")
    def _enough_subtriggers(self) -> Self:
        needed = getattr(self.ensemble_strategy, "n", 0)
        if needed > len(self.subtriggers):
            raise PlacedError("ensemble_strategy.n", f"{needed} of {len(self.subtriggers)} subtriggers never fire together")
        return self


class EnsembleTrigger(Trigger):
    """Fires when enough of its subtriggers have said yes since the run's last trigger (Modyn, SIGMOD'25, section 5.1: ensemble trigger).

    - *Positions*: each subtrigger decides at the same positions as without the ensemble. If several subtriggers decide at one position, all are
      checked before the votes are counted. If one of these subtriggers needs the next sample to decide (TimeTrigger), a check at the end of a batch
      waits for the next sample. At the end of the stream this check is not made.
    - *Votes are kept*: a yes stays valid until the next trigger of the run, even if the subtrigger later says no. The trigger clears all votes, also
      the votes in inner ensembles. A subtrigger that has not said yes votes no.
    - *Events reach all*: each subtrigger receives samples, triggers of the run and new models.

    Evidence: the evidence of each subtrigger under the name of the subtrigger, and each vote so far as 1 or 0, such as `drift.vote`. The ensemble has
    no evidence if none of the subtriggers that decide at the position has evidence.

    >>> from modyn.testing.decisions import decide
    >>> subtriggers = {"amount": {"id": "DataAmountTrigger", "num_samples": 3}, "time": {"id": "TimeTrigger", "every": "5s"}}
    >>> trigger = EnsembleTrigger(EnsembleConfig(subtriggers=subtriggers, ensemble_strategy=AllVote()))
    >>> times = np.arange(16)
    >>> [check.position for check in decide(trigger, [SampleBatch(times, times, times)]) if check.fires]
    [5, 10, 15]
    """

    Config: ClassVar[type[Section]] = EnsembleConfig

    def __init__(self, config: EnsembleConfig, context: TriggerContext | None = None) -> None:
        """If the strategy is a Custom vote, import its function. Raises: ConfigError, UserCodeError: the function cannot be imported."""
        super().__init__(config, context)
        self._strategy = config.ensemble_strategy
        self._function = _load(self._strategy.function) if isinstance(self._strategy, CustomVote) else None
        self._children = {
            name: build_trigger(section, context, f"trigger.{_SUBTRIGGERS}.{name}")
            for name, section in config.subtriggers.items()
        }
        self.late_span_s = min(child.late_span_s for child in self._children.values())
        self._votes = dict.fromkeys(self._children, False)
        self._due: tuple[str, ...] = ()
        """Subtriggers that decide at the last returned position. The value is set again before each check."""
        self._is_left = False
        """Whether subtriggers will decide about the end of the newest batch after the next sample has arrived."""

    @classmethod
    def problems(cls, options: Mapping[str, Any], path: str) -> list[Problem]:
        """Find mistakes in the options of the ensemble and its subtriggers. The package of a Custom vote's function must be installed."""
        if _levels(options) > MAX_LEVELS:
            return [Problem(f"{path}.{_SUBTRIGGERS}", f"at most {MAX_LEVELS} ensembles can be nested in each other")]
        found = super().problems(options, path) or _not_installed(
            options.get("ensemble_strategy"), f"{path}.ensemble_strategy.function"
        )
        for name, section in sections_in(options.get(_SUBTRIGGERS)).items():
            found += check_trigger_section(section, f"{path}.{_SUBTRIGGERS}.{name}")
        return found

    @property
    def label_delay(self) -> int:
        """The longest label delay of the subtriggers."""
        return max(child.label_delay for child in self._children.values())

    @property
    def sees_next_sample(self) -> bool:
        """Whether any subtrigger needs the sample after a position."""
        return any(child.sees_next_sample for child in self._children.values())

    def next_check(self, batch: SampleBatch, start: int) -> int | None:
        """Return the first position at which any subtrigger decides."""
        at, due, self._is_left = next_due(tuple(self._children.values()), batch, start)
        self._due = tuple(name for name, is_due in zip(self._children, due, strict=True) if is_due)
        return at

    def observe(self, samples: SampleBatch) -> None:
        """Pass the samples to all subtriggers."""
        for child in self._children.values():
            child.observe(samples)

    def questions(self, context: CheckContext) -> Sequence[DriftQuestion]:
        """Return the questions of the subtriggers that are due."""
        return [question for name in self._due for question in self._children[name].questions(context)]

    def check(self, context: CheckContext) -> Check:
        """Check the subtriggers that are due, and count the votes. A question of several subtriggers is asked once.

        Raises: UserCodeError: the function of a Custom vote fails.
        """
        shared = replace(context, source=SharedEvidence(context.source))
        checks = {name: self._children[name].check(shared) for name in self._due}
        votes = self._votes | {name: True for name, check in checks.items() if check.fires}
        evidence = [one.of_subtrigger(name) for name, check in checks.items() for one in check.evidence]
        if evidence:
            evidence += [Evidence(name, float(vote), kind=EvidenceKind.VOTE) for name, vote in votes.items()]
        memory = {name: {"fires": check.fires, "memory": check.memory} for name, check in checks.items()}
        return Check(self._decide(votes), evidence, memory)

    def checked(self, record: CheckRecord) -> None:
        """Pass each subtrigger its own verdict, and store the votes. Raises: CorruptStateError: the record belongs to other subtriggers."""
        if record.memory.keys() != set(self._due):
            raise CorruptStateError(
                f"after {record.position} samples, {sorted(record.memory)} of the subtriggers have decided as journalled, and {sorted(self._due)} "
                "decide now: a policy differs from the one that began the run; install that one again, or submit the pipeline again"
            )
        for name, verdict in record.memory.items():
            evidence = [one.within(name) for one in record.evidence if one.is_of_subtrigger(name)]
            self._children[name].checked(replace(record, fires=verdict["fires"], evidence=evidence, memory=verdict["memory"]))
            self._votes[name] |= verdict["fires"]

    def triggered(self, outcome: TriggerOutcome) -> None:
        """Clear the votes, and pass the trigger to all subtriggers."""
        self._votes = dict.fromkeys(self._votes, False)
        for child in self._children.values():
            child.triggered(outcome)

    def ended(self, outcome: TriggerOutcome) -> None:
        """Pass the end of the trigger to all subtriggers."""
        for child in self._children.values():
            child.ended(outcome)

    def warning(self) -> str | None:
        """Return the warnings of all subtriggers."""
        found = [f"{name}: {warning}" for name, child in self._children.items() if (warning := child.warning())]
        return "; ".join(found) or None

    def end_warning(self) -> str:
        """Return what each subtrigger lacks. If a subtrigger waits for the next sample, the text says so."""
        found = [f"{name}: {lacks}" for name, child in self._children.items() if (lacks := child.end_warning())]
        return "; ".join([*found, *([_NEXT_SAMPLE] if self._is_left else [])])

    def state(self) -> dict[str, Any]:
        """Return the `votes` so far, and the states of the `subtriggers` by name."""
        children = {name: child.state() for name, child in self._children.items()}
        return {"version": _VERSION, "votes": self._votes, _SUBTRIGGERS: children}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the votes and the states. Raises: CorruptStateError."""
        values = read_state("EnsembleTrigger", state, _VERSION, {"votes": (dict,), _SUBTRIGGERS: (dict,)})
        if not self._children.keys() == values["votes"].keys() == values[_SUBTRIGGERS].keys():
            raise CorruptStateError(f"the saved state of EnsembleTrigger is of other subtriggers: {sorted(values['votes'])}")
        for name, child in self._children.items():
            self._votes[name] = values["votes"][name]
            child.load_state(values[_SUBTRIGGERS][name])

    def _decide(self, votes: Mapping[str, bool]) -> bool:
        if not isinstance(self._strategy, CustomVote):
            return self._strategy.decide(list(votes.values()))
        assert self._function is not None
        try:
            answer = self._function(dict(votes))
        except (Exception, SystemExit) as error:
            raise UserCodeError(f"{self._strategy.function} failed for {votes}: {type(error).__name__}: {error}") from error
        if not isinstance(answer, bool | np.bool_):
            raise UserCodeError(f"{self._strategy.function} returned {answer!r} for {votes}; it must return True or False")
        return bool(answer)


def _not_installed(strategy: object, path: str) -> list[Problem]:
    """Find the missing package of the function of a Custom vote. Args: strategy: strategy without other mistakes."""
    if not isinstance(strategy, Mapping) or strategy.get("id") != "Custom":
        return []
    package = str(strategy["function"]).partition(":")[0].partition(".")[0]
    if package in sys.modules or find_spec(package) is not None:
        return []
    return [Problem(path, f"there is no package '{package}' where the supervisor runs; install it there", Severity.UNAVAILABLE)]


def _load(name: str) -> Any:
    """Import the function of a Custom vote."""
    try:
        function: Any = load_object(name)
    except ModynError:
        raise
    except (Exception, SystemExit) as error:
        raise UserCodeError(f"'{name}' cannot be imported: {type(error).__name__}: {error}") from error
    if not callable(function):
        raise ConfigError(f"'{name}' is not a function; name one in trigger.ensemble_strategy.function")
    return function


def _levels(options: Mapping[str, Any]) -> int:
    """Return the depth of nested ensembles, at most `MAX_LEVELS` + 1."""
    level: list[Mapping[str, Any]] = [options]
    for depth in range(MAX_LEVELS + 1):
        level = [section for outer in level for section in sections_in(outer.get(_SUBTRIGGERS)).values()]
        if not level:
            return depth
    return MAX_LEVELS + 1
