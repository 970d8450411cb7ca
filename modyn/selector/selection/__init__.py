"""Selection strategies, which select the trigger set (keys and weights to train on) from the window of a trigger. Each file has one strategy. The key
`name` in the section `selection_strategy` chooses it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Final, Literal

from pydantic import Field, field_validator

from modyn.config.base import Problem, Section, Severity, check_section
from modyn.config.policy import check_policy, load_policy
from modyn.registry import Registry
from modyn.selector.window import Selection, SelectionContext, SelectionWindow, StatefulPolicy


class SelectionConfig(Section):
    """Keys of `selection_strategy` that all strategies share, besides `name`."""

    maximum_keys_in_memory: int = Field(
        ge=1,
        le=2**31 - 1,
        description="largest number of keys that the selector holds at once; also the size of a partition of a trigger set",
    )
    limit: int = Field(-1, ge=-1, description="largest number of samples in a trigger set; -1: no limit")
    storage_backend: Literal["database", "local"] = Field(
        "local",
        description=(
            "where the selector keeps samples: in columnar files (`local`), or also as rows of a PostgreSQL table (`database`), for "
            "policies that select with SQL; no built-in policy reads the rows yet, and writing them costs time"
        ),
    )
    uses_weights: bool = Field(
        False, description="multiply the loss of each sample by its weight, divided by the mean weight of the trigger set"
    )
    tail_triggers: int | None = Field(
        None,
        ge=0,
        description="number of earlier triggers whose samples are also selected from; none: all history; 0: only samples since the last trigger",
    )
    keep_scores: bool = Field(
        False,
        description="keep the loss of each sample in each epoch of the trainings, and the score and weight with which downsampling chose it, "
        "for `modyn show RUN --scores` and `modyn data show --run RUN --trigger T`. Policies that need scores get them without this "
        "option",
    )

    @field_validator("limit")
    @classmethod
    def _check_limit(cls, value: int) -> int:
        if value == 0:
            raise ValueError("0 would select nothing; write -1 for no limit, or a number of samples")
        return value

    def capped(self, size: int) -> int:
        """Return the smaller of `size` and `limit`."""
        return size if self.limit < 0 else min(size, self.limit)


class SelectionPolicy(StatefulPolicy, ABC):
    """A selection strategy. Each trigger of a run builds a new object from the `Config`.

    A selection depends only on the configuration, the window, the context and the saved state, and not on a clock, a global generator or the batches
    in which the stream arrived. Two selections for a trigger give the same keys.
    """

    Config: ClassVar[type[SelectionConfig]]

    def __init__(self, config: SelectionConfig) -> None:
        self.config = config

    @property
    def feedback(self) -> tuple[str, ...]:
        """Names of the scores that trainings compute for each sample, for later selections and for users: `loss`, `loss_decrease` or `gradient_N`
        with N numbers, for example `gradient_32`. See docs/how-to/plugins.md.
        """
        return ("loss",) if self.config.keep_scores else ()

    @property
    def columns(self) -> Mapping[str, str]:
        """The columns of the dataset that the policy reads through `SelectionContext.column`, by the path of the option that names the column."""
        return {}

    @classmethod
    def check(cls, options: Mapping[str, Any], path: str) -> list[Problem]:
        """Return every mistake of the section. Args: options: the section without its `name`. path: path of the section; the paths of mistakes begin
        with it."""
        return check_section(cls.Config, dict(options), path)

    @classmethod
    def check_history(cls, name: str, options: Mapping[str, Any], path: str) -> list[Problem]:
        """Return a warning if windows have no samples of earlier triggers, because the policy would then act like a simpler policy.

        Args: name: name of the policy. options, path: see `check`.
        """
        if options.get("tail_triggers") != 0:
            return []
        message = f"0 leaves no samples of earlier triggers, which {name} is for; leave it out for all of them, or write a number of triggers"
        return [Problem(f"{path}.tail_triggers", message, Severity.WARNING)]

    @abstractmethod
    def select(self, window: SelectionWindow, context: SelectionContext) -> Selection:
        """Return at most `limit` keys of the window in stream order, each at most once, with float32 weights.

        `num_keys` must be known before the chunks are read. Each chunk should hold at most `window.chunk_size` keys.
        """


SELECTION: Final[Registry[type[SelectionPolicy]]] = Registry(
    group="modyn.selection",
    kind="selection strategy",
    builtin={
        "CoresetStrategy": "modyn.selector.selection.coreset:CoresetStrategy",
        "FreshnessSamplingStrategy": "modyn.selector.selection.freshness:FreshnessSamplingStrategy",
        "NewDataStrategy": "modyn.selector.selection.new_data:NewDataStrategy",
    },
)


def validate_selection(section: Mapping[str, Any]) -> list[Problem]:
    """Return every mistake of a `selection_strategy` section."""
    return check_policy(SELECTION, section, "name", "selection_strategy", _check_options)


def validate_selection_section(pipeline: Mapping[str, object]) -> list[Problem]:
    """Return every mistake of a whole pipeline's `selection_strategy`."""
    section = pipeline.get("selection_strategy")
    if isinstance(section, Mapping):
        return validate_selection(section)
    if section is None:
        return [Problem("selection_strategy", "is required: which samples to train on")]
    return [Problem("selection_strategy", f"{section!r} is wrong: write a mapping with `name` and the options of that strategy")]


def asked_scores(pipeline: Mapping[str, object]) -> tuple[str, ...]:
    """Return the names of the scores that a pipeline's selection needs from trainings (see `SelectionPolicy.feedback`); empty if the section is
    invalid.

    >>> asked_scores({"selection_strategy": {"name": "NewDataStrategy", "maximum_keys_in_memory": 100, "keep_scores": True}})
    ('loss',)
    """
    section = pipeline.get("selection_strategy")
    if not isinstance(section, Mapping) or any(problem.severity is Severity.ERROR for problem in validate_selection(section)):
        return ()
    return build_selection(section).feedback


def build_selection(section: Mapping[str, Any]) -> SelectionPolicy:
    """Build the policy of a `selection_strategy` section. Raises a ConfigError that lists every mistake.

    >>> build_selection({"name": "NewDataStrategy", "maximum_keys_in_memory": 100}).config.limit
    -1
    """
    policy, config = load_policy(SELECTION, section, "name", "selection_strategy", _check_options)
    return policy(config)


def _check_options(policy: type[SelectionPolicy], options: Mapping[str, Any], path: str) -> list[Problem]:
    return policy.check(options, path)
