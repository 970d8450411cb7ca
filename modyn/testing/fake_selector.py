"""An in-memory selector, which uses the same policies as the service and makes the same trigger sets."""

from __future__ import annotations

import hashlib
import shutil
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import accumulate
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

import numpy as np

from modyn.config.base import Problem
from modyn.errors import AlreadyExistsError, ConflictError, InvalidArgumentError, NotFoundError
from modyn.records import (
    FeedbackHeader,
    FeedbackRows,
    KeysAndWeights,
    RunId,
    RunRegistration,
    SampleBatch,
    SelectionSummary,
    TriggerSetInfo,
)
from modyn.rpc.retry import CancellationToken
from modyn.run_ids import check_run_id
from modyn.selector.deletions import DeletedKeys
from modyn.selector.history import check_history, select_online
from modyn.selector.sample_log import check_range, refuse_other_labels, refuse_others, unseen
from modyn.selector.selection import SelectionPolicy, asked_scores, build_selection, validate_selection_section
from modyn.selector.storage_columns import ReadColumn, no_columns
from modyn.selector.summary import ChosenSet, summarize
from modyn.selector.trigger_set import check_checksum, check_next, partition_bounds
from modyn.selector.window import NO_KEYS, FeedbackFiles, SelectionContext, StateFiles, trigger_before_window, window_of_trigger
from modyn.testing.fakes import FakeClient
from modyn.testing.memory_reader import MemoryReader

if TYPE_CHECKING:
    from modyn.selector.window.state_files import References


@dataclass
class _RegisteredRun:
    registration: RunRegistration
    policy: SelectionPolicy
    samples: SampleBatch = field(default_factory=SampleBatch.empty)
    labels: SampleBatch | None = None
    """The samples with labels, in the order in which labels arrived. None: all samples of the stream have labels, in the order of the stream."""
    boundaries: list[int] = field(default_factory=list)
    sets: list[KeysAndWeights] = field(default_factory=list)
    online_triggers: set[int] = field(default_factory=set)
    state_files: References = field(default_factory=dict)

    @property
    def selectable(self) -> SampleBatch:
        """Return the stream from which trigger sets are selected."""
        return self.samples if self.labels is None else self.labels


class FakeSelectorClient(FakeClient):
    """Makes the same trigger sets as the service. `runs[run_id].samples` is the stream of a run so far, and `.sets` are its trigger sets.

    Methods take the same arguments as the methods of `SelectorClient`.

    Args: deleted_keys: function that returns the deleted keys of a dataset; by default, no keys. read_column: function that returns the strata of a
    column; by default, no dataset has columns.
    """

    def __init__(
        self, deleted_keys: DeletedKeys = lambda dataset, identity: NO_KEYS, read_column: ReadColumn = no_columns
    ) -> None:
        self._deleted_keys, self._read_column = deleted_keys, read_column
        self.runs: dict[RunId, _RegisteredRun] = {}
        self._folder = Path(mkdtemp(prefix="modyn-fake-selector-"))
        """Folder of the files of policies."""
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)

    def validate(self, pipeline: Mapping[str, Any]) -> list[Problem]:
        """Return the problems that the service would find."""
        return validate_selection_section(pipeline) + check_history(pipeline)

    def asked_scores(self, pipeline: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the names of the scores that the service would request."""
        return asked_scores(pipeline)

    def register_run(self, run: RunRegistration) -> None:
        """Register a run like `SelectorClient.register_run`, with a policy built from its `selection_strategy`.

        Raises: AlreadyExistsError: the run is registered with other arguments. ConfigError: the section is wrong.
        """
        check_run_id(run_id := run.run_id)
        new = _RegisteredRun(RunRegistration(**asdict(run)), build_selection(run.selection_strategy))
        if not run.is_equal(self.runs.setdefault(run_id, new).registration):
            raise AlreadyExistsError(
                f"run '{run_id}' is registered with another dataset, or another registration of it, strategy, section online or seed; choose "
                "another run id"
            )

    def data_section(self, run_id: RunId) -> dict[str, Any] | None:
        """Return the registered `data`. Raises NotFoundError."""
        data = self._run(run_id).registration.data
        return None if data is None else dict(data)

    def dataset(self, run_id: RunId) -> tuple[str, str]:
        """Return the registered dataset and its identity. Raises NotFoundError."""
        run = self._run(run_id)
        return run.registration.dataset, run.registration.dataset_identity

    def inform(self, run_id: RunId, position: int, samples: SampleBatch) -> int:
        """Append the new samples of `samples`. Returns the number of samples of the run. Args: position: position of the first sample in the stream.

        Raises: ConflictError: there is a gap, or other samples are stored at these positions.
        """
        run = self._run(run_id)
        run.samples = _appended(run_id, run.samples, position, samples)
        return len(run.samples)

    def inform_labels(self, run_id: RunId, number: int, samples: SampleBatch) -> int:
        """Append the new samples of `samples`, whose labels have arrived. Raises ConflictError: see `inform`."""
        run = self._run(run_id)
        held = run.samples.slice(0, number) if run.labels is None else run.labels
        run.labels = _appended(run_id, held, number, samples)
        return len(run.labels)

    def samples(self, run_id: RunId, position: int, limit: int, *, labelled: bool = False) -> SampleBatch:
        """Return at most `limit` samples from `position` on, in the order of arrival. Raises ConflictError: the run has fewer than `position`
        samples."""
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
        """Select from the first `num_samples` samples as the service does, or return the existing set.

        Args: token: token that the fake checks once, before the selection.
        Raises: ConflictError: see `SelectorClient.trigger`.
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
                f"{'online' if trigger_id in run.online_triggers else 'not online'}; a trigger set does not change"
            )
        return self.trigger_set(run_id, trigger_id)

    def _select(self, run_id: RunId, num_samples: int) -> KeysAndWeights:
        run = self._run(run_id)
        config, ends = run.policy.config, self._ends(run)
        reader, deleted = (
            MemoryReader(run.selectable),
            self._deleted_keys(run.registration.dataset, run.registration.dataset_identity),
        )
        before = trigger_before_window(len(ends), config.tail_triggers)
        window = window_of_trigger(
            reader, 0 if before is None else ends[before], num_samples, config.maximum_keys_in_memory, deleted
        )
        files = StateFiles(self._folder / run_id, len(run.boundaries), run.state_files)
        feedback, column = (
            self._feedback(run_id).find,
            partial(self._read_column, run.registration.dataset, run.registration.dataset_identity),
        )
        context = SelectionContext(
            run.registration.seed, len(run.boundaries), files, lambda: np.array(ends, np.int64), feedback, column
        )
        chosen = KeysAndWeights.concatenate(list(run.policy.select(window, context).chunks))
        run.state_files = files.references()
        return chosen

    def _select_online(self, run_id: RunId, num_samples: int, tests_only: bool) -> KeysAndWeights:
        run = self._run(run_id)
        if run.registration.online is None or not run.boundaries:
            raise ConflictError(f"run '{run_id}' has no online trigger")
        reader, size = MemoryReader(run.selectable), run.policy.config.maximum_keys_in_memory
        deleted = self._deleted_keys(run.registration.dataset, run.registration.dataset_identity)
        window = window_of_trigger(reader, 0, num_samples, size, deleted)
        num_new = len(window_of_trigger(reader, run.boundaries[-1], num_samples, size, deleted))
        trigger_id, ends = len(run.boundaries), self._ends(run)
        files = StateFiles(self._folder / run_id, trigger_id, {})
        context = SelectionContext(run.registration.seed, trigger_id, files, lambda: np.array(ends, np.int64))
        selection = select_online(run.registration.online, window, len(window) - num_new, context, tests_only=tests_only)
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
        return TriggerSetInfo(run_id, trigger_id, len(keys), size, checksum, run.registration.dataset_identity, feedback)

    def put_feedback(self, header: FeedbackHeader, rows: Callable[[], Iterable[FeedbackRows]]) -> FeedbackHeader:
        """Store the scores of a training. Raises ConflictError: the trigger set has another checksum."""
        check_checksum(self.trigger_set(header.run_id, header.trigger_id), header.keys_checksum)
        (self._folder / header.run_id).mkdir(exist_ok=True)
        parts = list(rows())
        positions = accumulate(map(len, parts), initial=0)
        return self._feedback(header.run_id).put(header, zip(positions, parts, strict=False))

    def feedback_headers(self, run_id: RunId) -> list[FeedbackHeader]:
        """Return the headers of the scores of a run's trainings. Raises NotFoundError."""
        self._run(run_id)
        return self._feedback(run_id).headers()

    def feedback(self, header: FeedbackHeader) -> Iterator[FeedbackRows]:
        """Yield the scores of a training. Raises NotFoundError. ConflictError: scores of another attempt have replaced these scores."""
        self._run(header.run_id)
        yield from self._feedback(header.run_id).get(header.trigger_id, header.attempt).chunks()

    def keys(self, run_id: RunId, trigger_id: int, partition: int, keys_checksum: str = "") -> KeysAndWeights:
        """Return a partition in one chunk. Args: partition: number, from 0. Raises ConflictError: the checksum of the set is not `keys_checksum`."""
        info = self.trigger_set(run_id, trigger_id)
        check_checksum(info, keys_checksum)
        start, stop = partition_bounds(info.num_keys, info.partition_size, partition)
        found = self.runs[run_id].sets[trigger_id]
        return KeysAndWeights(found.keys[start:stop], found.weights[start:stop])

    def summary(self, run_id: RunId, trigger_id: int) -> SelectionSummary:
        """Return the counts that the service would return. Raises NotFoundError, InvalidArgumentError."""
        self.trigger_set(run_id, trigger_id)
        run = self._run(run_id)
        if trigger_id in run.online_triggers:
            raise InvalidArgumentError(f"trigger {trigger_id} of run '{run_id}' is online")
        sets = [found for number, found in enumerate(run.sets) if number not in run.online_triggers]
        ends, last = self._ends(run), sum(number not in run.online_triggers for number in range(trigger_id))

        def of(number: int) -> ChosenSet:
            before = trigger_before_window(number, run.policy.config.tail_triggers)
            return ChosenSet(0 if before is None else ends[before], ends[number], len(sets[number]), iter([sets[number]]))

        return summarize(MemoryReader(run.selectable), trigger_id, of(last), of(last - 1) if last else None)

    def delete_run(self, run_id: RunId) -> None:
        """Remove a run; an unknown run is ignored."""
        self.runs.pop(run_id, None)
        shutil.rmtree(self._folder / run_id, ignore_errors=True)

    def _feedback(self, run_id: RunId) -> FeedbackFiles:
        return FeedbackFiles(self._folder / run_id / "feedback", run_id)

    def _run(self, run_id: RunId) -> _RegisteredRun:
        if run_id not in self.runs:
            raise NotFoundError(f"the selector knows no run '{run_id}'; register it first")
        return self.runs[run_id]


def _appended(run_id: RunId, held: SampleBatch, position: int, sent: SampleBatch) -> SampleBatch:
    """Return `held`, followed by the new samples of `sent`. Args: position: position of the first sent sample. Raises ConflictError,
    InvalidArgumentError."""
    new = unseen(run_id, len(held), position, sent)
    known = sent.keys[: len(sent) - len(new)]
    refuse_others(run_id, position, held.keys[position : position + len(known)], known)
    if not len(new):
        return held
    refuse_other_labels(run_id, len(held), held.labels.dtype.kind == "f" if len(held) else None, new.labels.dtype.kind == "f")
    return SampleBatch.concatenate([held, new]) if len(held) else new


def example_sets(
    strategy: Mapping[str, Any],
    *labels: Sequence[float],
    online: Mapping[str, Any] | None = None,
    read_column: ReadColumn = no_columns,
) -> list[list[int]]:
    """Select several trigger sets, and return their keys, for examples and tests of policies. Sample i of the stream has key i and timestamp i.

    Args: labels: labels of the new samples of each trigger. online: section `online`; all triggers after the first trigger are online steps of this
    section.

    >>> example_sets({"name": "NewDataStrategy", "tail_triggers": 0}, [0, 1], [1, 1, 0])
    [[0, 1], [2, 3, 4]]
    """
    client, run_id, end = FakeSelectorClient(read_column=read_column), RunId("example"), 0
    client.register_run(RunRegistration(run_id, "d", {"maximum_keys_in_memory": 1000, **strategy}, seed=0, online=online))
    for number, new in enumerate(labels):
        positions = np.arange(end, end + len(new))
        client.inform(run_id, end, SampleBatch(positions, positions, np.array(new)))
        end += len(new)
        client.trigger(run_id, number, end, online=online is not None and number > 0)
    return [found.keys.tolist() for found in client.runs[run_id].sets]


def example_presampling(options: Mapping[str, Any], *labels: Sequence[float], **more: Any) -> list[list[int]]:
    """Select with a presampling policy. Args: options: `presampling_config`. labels, more: see `example_sets`."""
    return example_sets({"name": "CoresetStrategy", "presampling_config": options}, *labels, **more)


def example_history(options: Mapping[str, Any]) -> list[int]:
    """Return the keys of two online steps after the samples 0 to 5. A step has two new samples, followed by two samples of the history.

    Args: options: section `online.history`.
    """
    trigger = {"id": "DataAmountTrigger", "num_samples": 4}
    online = {"trigger": trigger, "step_samples": 2, "history_samples": 2, "history": options}
    return example_sets({"name": "NewDataStrategy"}, [0] * 6, [0] * 4, online=online)[1]
