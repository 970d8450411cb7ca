"""The selector in memory: the same trigger sets as the service makes, by the same policies."""

from __future__ import annotations

import hashlib
import shutil
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

import numpy as np

from modyn.config.base import Problem
from modyn.errors import AlreadyExistsError, ConflictError, InvalidArgumentError, NotFoundError
from modyn.records import FeedbackHeader, FeedbackRows, KeysAndWeights, RunId, SampleBatch, SelectionSummary, TriggerSetInfo
from modyn.rpc.retry import CancellationToken
from modyn.run_ids import check_run_id
from modyn.selector.columns import ReadColumn, no_columns
from modyn.selector.deletions import DeletedKeys
from modyn.selector.history import check_history, select_online
from modyn.selector.sample_log import check_range, refuse_other_labels, refuse_others, unseen
from modyn.selector.selection import SelectionPolicy, asked_scores, build_selection, validate_selection_section
from modyn.selector.summary import ChosenSet, summarize
from modyn.selector.trigger_set import check_checksum, check_next, partition_bounds
from modyn.selector.window import NO_KEYS, FeedbackFiles, SelectionContext, StateFiles, trigger_before_window, window_of_trigger
from modyn.testing.fakes import FakeClient
from modyn.testing.memory_reader import MemoryReader

if TYPE_CHECKING:
    from modyn.selector.window.state_files import References


@dataclass
class _RegisteredRun:
    dataset: str
    strategy: dict[str, Any]
    seed: int
    policy: SelectionPolicy
    data: dict[str, Any] | None = None
    dataset_identity: str = ""
    online: dict[str, Any] | None = None
    samples: SampleBatch = field(default_factory=SampleBatch.empty)
    labels: SampleBatch | None = None
    """The samples with labels, in the order of these; None: they are those of the stream."""
    boundaries: list[int] = field(default_factory=list)
    sets: list[KeysAndWeights] = field(default_factory=list)
    online_triggers: set[int] = field(default_factory=set)
    state_files: References = field(default_factory=dict)

    @property
    def selectable(self) -> SampleBatch:
        """What trigger sets are selected from."""
        return self.samples if self.labels is None else self.labels


class FakeSelectorClient(FakeClient):
    """Makes the same trigger sets as the service. `runs[run_id].samples` is the stream as informed, `.sets` are the trigger sets.

    Args: deleted_keys: which keys of a dataset are deleted; by default none. read_column: the strata of a column; by default there is none.
    Methods take the arguments of those of `SelectorClient`.
    """

    def __init__(
        self, deleted_keys: DeletedKeys = lambda dataset, identity: NO_KEYS, read_column: ReadColumn = no_columns
    ) -> None:
        self._deleted_keys, self._read_column = deleted_keys, read_column
        self.runs: dict[RunId, _RegisteredRun] = {}
        self._folder = Path(mkdtemp(prefix="modyn-fake-selector-"))
        """Of the files that policies keep."""
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)

    def validate(self, pipeline: Mapping[str, Any]) -> list[Problem]:
        """The problems that the service would find."""
        return validate_selection_section(pipeline) + check_history(pipeline)

    def asked_scores(self, pipeline: Mapping[str, Any]) -> tuple[str, ...]:
        """The scores that the service would name."""
        return asked_scores(pipeline)

    def register_run(
        self,
        run_id: RunId,
        dataset: str,
        selection_strategy: Mapping[str, Any],
        seed: int,
        data: Mapping[str, Any] | None = None,
        dataset_identity: str = "",
        online: Mapping[str, Any] | None = None,
    ) -> None:
        """Register a run as `SelectorClient.register_run`, with a policy that is built from `selection_strategy` here.

        Raises: AlreadyExistsError: it is registered with other arguments. ConfigError: the section is wrong.
        """
        check_run_id(run_id)
        section = dict(selection_strategy)
        copied, steps = (None if part is None else dict(part) for part in (data, online))
        new = _RegisteredRun(dataset, section, seed, build_selection(section), copied, dataset_identity, steps)
        run = self.runs.setdefault(run_id, new)
        if (run.dataset, run.strategy, run.seed, run.dataset_identity, run.online) != (
            dataset,
            section,
            seed,
            dataset_identity,
            steps,
        ):
            raise AlreadyExistsError(
                f"run '{run_id}' is registered with another dataset, or another registration of it, strategy, section online or seed; choose "
                "another run id"
            )

    def data_section(self, run_id: RunId) -> dict[str, Any] | None:
        """Return `data` as it was registered. Raises NotFoundError."""
        return self._run(run_id).data

    def dataset(self, run_id: RunId) -> tuple[str, str]:
        """Return the dataset and its identity as they were registered. Raises NotFoundError."""
        run = self._run(run_id)
        return run.dataset, run.dataset_identity

    def inform(self, run_id: RunId, position: int, samples: SampleBatch) -> int:
        """Append what is new of `samples`, which begin at `position` of the run's stream; return the number held.

        Raises: ConflictError: there is a gap, or other samples are held at these positions.
        """
        run = self._run(run_id)
        run.samples = _appended(run_id, run.samples, position, samples)
        return len(run.samples)

    def inform_labels(self, run_id: RunId, number: int, samples: SampleBatch) -> int:
        """Append what is new of `samples`, whose labels have come. Raises ConflictError, as `inform`."""
        run = self._run(run_id)
        held = run.samples.slice(0, number) if run.labels is None else run.labels
        run.labels = _appended(run_id, held, number, samples)
        return len(run.labels)

    def samples(self, run_id: RunId, position: int, limit: int, *, labelled: bool = False) -> SampleBatch:
        """Return at most `limit` samples from `position` on, as they were informed. Raises ConflictError if fewer are held."""
        run = self._run(run_id)
        found = run.selectable if labelled else run.samples
        check_range(run_id, len(found), position, limit)
        return found.slice(position, min(position + limit, len(found)))

    def trigger(
        self,
        run_id: RunId,
        trigger_id: int,
        num_samples: int,
        token: CancellationToken | None = None,
        *,
        online: bool = False,
        tests_only: bool = False,
    ) -> TriggerSetInfo:
        """Select over the first `num_samples` samples as the service does, or return the existing set.

        Args: token: checked once, before the selection.
        Raises: ConflictError: as `SelectorClient.trigger`.
        """
        run = self._run(run_id)
        if token is not None:
            token.check()
        if not 0 <= trigger_id < len(run.boundaries):
            covered = run.boundaries[-1] if run.boundaries else 0
            check_next(run_id, len(run.selectable), len(run.boundaries), covered, trigger_id, num_samples)
            run.sets.append(self._select_online(run_id, num_samples, tests_only) if online else self._select(run_id, num_samples))
            run.boundaries.append(num_samples)
            if online:
                run.online_triggers.add(trigger_id)
        if run.boundaries[trigger_id] != num_samples or online != (trigger_id in run.online_triggers):
            raise ConflictError(
                f"trigger {trigger_id} of run '{run_id}' covers the first {run.boundaries[trigger_id]} samples, "
                f"{'online' if trigger_id in run.online_triggers else 'not online'}; it does not change"
            )
        return self.trigger_set(run_id, trigger_id)

    def _select(self, run_id: RunId, num_samples: int) -> KeysAndWeights:
        run = self._run(run_id)
        config, ends = run.policy.config, self._ends(run)
        reader, deleted = MemoryReader(run.selectable), self._deleted_keys(run.dataset, run.dataset_identity)
        before = trigger_before_window(len(ends), config.tail_triggers)
        window = window_of_trigger(
            reader, 0 if before is None else ends[before], num_samples, config.maximum_keys_in_memory, deleted
        )
        files = StateFiles(self._folder / run_id, len(run.boundaries), run.state_files)
        feedback, column = self._feedback(run_id).find, partial(self._read_column, run.dataset, run.dataset_identity)
        context = SelectionContext(run.seed, len(run.boundaries), files, lambda: np.array(ends, np.int64), feedback, column)
        chosen = KeysAndWeights.concatenate(list(run.policy.select(window, context).chunks))
        run.state_files = files.references()
        return chosen

    def _select_online(self, run_id: RunId, num_samples: int, tests_only: bool) -> KeysAndWeights:
        run = self._run(run_id)
        if run.online is None or not run.boundaries:
            raise ConflictError(f"run '{run_id}' has no online trigger")
        reader, size = MemoryReader(run.selectable), run.policy.config.maximum_keys_in_memory
        deleted = self._deleted_keys(run.dataset, run.dataset_identity)
        window = window_of_trigger(reader, 0, num_samples, size, deleted)
        num_new = len(window_of_trigger(reader, run.boundaries[-1], num_samples, size, deleted))
        trigger_id, ends = len(run.boundaries), self._ends(run)
        files = StateFiles(self._folder / run_id, trigger_id, {})
        context = SelectionContext(run.seed, trigger_id, files, lambda: np.array(ends, np.int64))
        selection = select_online(run.online, window, len(window) - num_new, context, tests_only=tests_only)
        return KeysAndWeights.concatenate(list(selection.chunks))

    def _ends(self, run: _RegisteredRun) -> list[int]:
        return [end for number, end in enumerate(run.boundaries) if number not in run.online_triggers]

    def trigger_set(self, run_id: RunId, trigger_id: int) -> TriggerSetInfo:
        """Describe the set of trigger `trigger_id` of a run. Raises NotFoundError."""
        run = self._run(run_id)
        if not 0 <= trigger_id < len(run.sets):
            raise NotFoundError(f"run '{run_id}' has no trigger {trigger_id}; trigger it first")
        keys, size = run.sets[trigger_id].keys, run.policy.config.maximum_keys_in_memory
        checksum = hashlib.sha256(keys.astype("<i8").tobytes()).hexdigest()
        feedback = () if trigger_id in run.online_triggers else run.policy.feedback
        return TriggerSetInfo(run_id, trigger_id, len(keys), size, checksum, run.dataset_identity, feedback)

    def put_feedback(self, header: FeedbackHeader, rows: Callable[[], Iterable[FeedbackRows]]) -> FeedbackHeader:
        """Keep the scores of a training. Raises ConflictError: the trigger set has another checksum."""
        check_checksum(self.trigger_set(header.run_id, header.trigger_id), header.keys_checksum)
        (self._folder / header.run_id).mkdir(exist_ok=True)
        parts = list(rows())
        positions = accumulate(map(len, parts), initial=0)
        return self._feedback(header.run_id).put(header, zip(positions, parts, strict=False))

    def feedback_headers(self, run_id: RunId) -> list[FeedbackHeader]:
        """Return what trainings of a run have scored. Raises NotFoundError."""
        self._run(run_id)
        return self._feedback(run_id).headers()

    def feedback(self, header: FeedbackHeader) -> Iterator[FeedbackRows]:
        """Yield the scores of a training. Raises NotFoundError, ConflictError: another attempt has replaced it."""
        self._run(header.run_id)
        yield from self._feedback(header.run_id).get(header.trigger_id, header.attempt).chunks()

    def keys(self, run_id: RunId, trigger_id: int, partition: int, keys_checksum: str = "") -> KeysAndWeights:
        """Return a partition, counted from 0, in one piece. Raises ConflictError if the set has another checksum than `keys_checksum`."""
        info = self.trigger_set(run_id, trigger_id)
        check_checksum(info, keys_checksum)
        start, stop = partition_bounds(info.num_keys, info.partition_size, partition)
        found = self.runs[run_id].sets[trigger_id]
        return KeysAndWeights(found.keys[start:stop], found.weights[start:stop])

    def summary(self, run_id: RunId, trigger_id: int) -> SelectionSummary:
        """Count as the service does. Raises NotFoundError, InvalidArgumentError."""
        self.trigger_set(run_id, trigger_id)
        run = self._run(run_id)
        if trigger_id in run.online_triggers:
            raise InvalidArgumentError(f"trigger {trigger_id} of run '{run_id}' is online")
        sets = [found for number, found in enumerate(run.sets) if number not in run.online_triggers]
        ends, last = self._ends(run), sum(number not in run.online_triggers for number in range(trigger_id))

        def of(number: int) -> ChosenSet:
            behind = trigger_before_window(number, run.policy.config.tail_triggers)
            return ChosenSet(0 if behind is None else ends[behind], ends[number], len(sets[number]), iter([sets[number]]))

        return summarize(MemoryReader(run.selectable), trigger_id, of(last), of(last - 1) if last else None)

    def delete_run(self, run_id: RunId) -> None:
        """Forget a run; a no-op for an unknown one."""
        self.runs.pop(run_id, None)
        shutil.rmtree(self._folder / run_id, ignore_errors=True)

    def _feedback(self, run_id: RunId) -> FeedbackFiles:
        return FeedbackFiles(self._folder / run_id / "feedback", run_id)

    def _run(self, run_id: RunId) -> _RegisteredRun:
        if run_id not in self.runs:
            raise NotFoundError(f"the selector knows no run '{run_id}'; register it first")
        return self.runs[run_id]


def _appended(run_id: RunId, held: SampleBatch, position: int, sent: SampleBatch) -> SampleBatch:
    """`held` and what is new of the samples that were sent for `position`. Raises ConflictError, InvalidArgumentError."""
    new = unseen(run_id, len(held), position, sent)
    known = sent.keys[: len(sent) - len(new)]
    refuse_others(run_id, position, held.keys[position : position + len(known)], known)
    if not len(new):
        return held
    refuse_other_labels(run_id, len(held), held.labels.dtype.kind == "f" if len(held) else None, new.labels.dtype.kind == "f")
    return SampleBatch.concatenate([held, new]) if len(held) else new
