"""The samples of a dataset in the order of a replay, for policies that may measure data. The evaluator finds samples by their positions in the
stream of a run. Therefore, the first question stores the stream in the selector, as the stream of a temporary run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Final, TypeVar, cast
from uuid import uuid4

from modyn.config.trigger_parts import ComparedData
from modyn.errors import ConflictError, InvalidArgumentError, UnavailableError
from modyn.evaluator.client import DriftQuestion, Question
from modyn.records import RunId, RunRegistration, SampleBatch
from modyn.rpc.retry import Retrier
from modyn.selector.client import SelectorClient
from modyn.storage.client import StorageClient
from modyn.supervisor.journal.cursor import Cursor
from modyn.supervisor.run.stream import SampleStream, StreamSource
from modyn.supervisor.run.stream_labels import StreamLabels
from modyn.supervisor.services.run_selector import RunSelector
from modyn.supervisor.triggers.measures.questions import DriftQuestions, EvidenceSource, HeldOutQuestion, LoadQuestion

A = TypeVar("A")

_STRATEGY: Final = {"name": "NewDataStrategy", "maximum_keys_in_memory": 100_000, "tail_triggers": 0}
"""Selection strategy of the temporary run, which has no trigger sets."""

NO_MODEL: Final = (
    "it looks at samples by a model, and there is none: name one with --model ID, or simulate it on a run of this dataset with "
    "--run RUN"
)
NO_DATA: Final = (
    "it looks at the content of samples, and nothing says how they are decoded: give the file of policies a section `data`, as in a pipeline, "
    "or name a model with --model ID, whose run says it"
)
NO_SECONDS: Final = (
    "it weighs the time of a training, and none is known: give --seconds-per-trigger and --seconds-per-sample, or simulate it on a "
    "run of this dataset with --run RUN"
)


def temporary_run_id() -> RunId:
    """Return an id for the stream of a simulation. The id contains a dot; the ids of the runs of pipelines have no dot.

    >>> temporary_run_id().startswith("simulation.")
    True
    """
    return RunId(f"simulation.{uuid4().hex}")


class SimulatedDataset:
    """The stream of a simulation on a dataset. The selector is not called before `hold`."""

    def __init__(
        self,
        run_id: RunId,
        source: StreamSource,
        storage: StorageClient,
        selector: SelectorClient,
        retrier: Retrier,
        label_delay: int = 0,
    ) -> None:
        """Args: run_id: id of the temporary run of this simulation. label_delay: seconds of stream time between a sample and its label."""
        self._label_delay = label_delay
        self._held = Cursor()
        """Cursor after the samples that the selector has."""
        self._labels: StreamLabels
        self._source = source
        self._storage = storage
        self._run_id = run_id
        self._selector = RunSelector(selector, run_id, retrier)
        self._retrier = retrier
        self._is_registered = False
        """Whether the selector may know the temporary run."""
        self._is_held = False
        """Whether the selector has all samples that were yielded."""
        self._num_earlier = 0
        """Number of samples that were yielded before the newest batch."""
        self._earlier: tuple[int, int] | None = None
        """(timestamp, key) of the last sample before the newest batch."""
        self._newest = SampleBatch.empty()
        """The batch that was yielded last."""

    def batches(self) -> Iterator[SampleBatch]:
        """Yield the samples as a run in experiment mode would receive them, without samples that were ingested since the start."""
        with closing(SampleStream(self._storage, self._source, None, self._retrier)) as stream:
            for batch in stream.samples():
                if len(self._newest):
                    self._num_earlier += len(self._newest)
                    self._earlier = int(self._newest.timestamps[-1]), int(self._newest.keys[-1])
                self._newest = batch
                if self._is_held:
                    self._inform(batch)
                yield batch

    def hold(self) -> None:
        """Store the yielded samples in the selector, unless the selector already has these samples.

        Raises: ConflictError: samples were deleted since the simulation began, so that positions differ.
        """
        if not self._is_held:
            source = self._source
            if self._is_registered:
                self._selector.delete()  # An earlier error has left only some samples in the selector.
            self._is_registered = True
            registration = RunRegistration(self._run_id, source.dataset, _STRATEGY, 0, dataset_identity=source.identity)
            self._selector.register(registration)
            self._held = Cursor()
            self._labels = StreamLabels(self._label_delay, self._selector, self._held)
            self._hold_earlier()
            self._inform(self._newest)
            self._is_held = True

    def _inform(self, batch: SampleBatch) -> None:
        self._held = self._held.plus(self._labels.inform(self._held, batch))

    def _hold_earlier(self) -> None:
        """Read the samples before the newest batch again, and store these samples in the selector."""
        held, last = 0, None
        with closing(SampleStream(self._storage, self._source, None, self._retrier)) as stream:
            for found in stream.samples() if self._num_earlier else ():
                batch = found.slice(0, self._num_earlier - held)
                self._inform(batch)
                held, last = held + len(batch), (int(batch.timestamps[-1]), int(batch.keys[-1]))
                if held == self._num_earlier:
                    break
        if (held, last) != (self._num_earlier, self._earlier):
            raise ConflictError(
                f"samples of dataset '{self._source.dataset}' were deleted since the simulation began, so positions in its stream differ; "
                "start it again"
            )

    def close(self) -> None:
        """Remove the temporary run, if the selector can be reached."""
        if self._is_registered:
            # The result of the simulation does not depend on the removal.
            with suppress(UnavailableError):
                self._selector.delete()
            self._is_registered = self._is_held = False


class DatasetEvidence:
    """An EvidenceSource for a dataset's stream. The source refuses questions that need a model if there is no model, and questions that need the
    content of samples if samples cannot be decoded.
    """

    def __init__(self, stream: SimulatedDataset, source: EvidenceSource, *, decodes: bool, has_model: bool) -> None:
        """Args: source: answers for the temporary run. decodes: whether samples can be decoded. has_model: whether a model was given."""
        self._stream = stream
        self._source = source
        self._decodes = decodes
        self._has_model = has_model

    def ask(self, question: Question[A], /) -> A:
        """See `EvidenceSource.ask`. Raises: InvalidArgumentError: the question needs a model or a `data` section that the simulation lacks."""
        if isinstance(question, LoadQuestion):
            return cast("A", self._source.ask(question))
        asked = question.question if isinstance(question, DriftQuestions) else question
        # Policies that score models have their own `data` section.
        compared = asked.data if isinstance(asked, DriftQuestion) else None
        if not self._has_model and (compared is None or compared.needs_model):
            raise InvalidArgumentError(NO_MODEL)
        if not self._decodes and compared not in (None, ComparedData.LABELS):
            raise InvalidArgumentError(NO_DATA)
        if not isinstance(question, HeldOutQuestion):
            self._stream.hold()
        return self._source.ask(question)
