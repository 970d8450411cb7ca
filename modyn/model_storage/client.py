"""Typed client of model storage, and the records of its calls. Weights are streamed as a safetensors file, whose content is never executed."""

from __future__ import annotations

import getpass
import hashlib
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Self, TypeVar

from modyn.errors import CorruptStateError, InvalidArgumentError, NotFoundError
from modyn.models.weights import weights_sha256
from modyn.proto import model_storage_pb2, model_storage_pb2_grpc
from modyn.records import ModelVersion, RunId
from modyn.rpc.client import SectionClient
from modyn.rpc.wire import from_message, to_message

if TYPE_CHECKING:
    from modyn.workers import KeptModels

CHUNK_BYTES: Final = 1 << 20
OUT_OF_ORDER: Final = "did not come as one header, then chunks, then one trailer"
M = TypeVar("M", model_storage_pb2.PutRequest, model_storage_pb2.GetReply)


@dataclass(frozen=True, slots=True)
class ModelHeader:
    """Description of a model that is stored with `put`."""

    run_id: RunId
    """Run that made the model; empty: the model is imported, and its `put` is not idempotent."""
    trigger_id: int
    model_class: str
    """`model.id` of the pipeline."""
    model_config: Mapping[str, Any] = field(default_factory=dict)
    model_storage: Mapping[str, Any] = field(default_factory=dict)
    """The section `model_storage` of the pipeline; empty: the model is stored whole, as safetensors."""
    training_result: Mapping[str, Any] = field(default_factory=dict)
    """Report of the trainer: counts, losses, seconds of each stage."""
    parent_id: int | None = None
    """Id of the version that this model was fine-tuned from."""
    has_optimizers: bool = False
    """Whether the state of the optimizers is sent with the model. `put` sets this field."""
    model_definition: str = ""
    """Text that the model is built from, see `modyn.models.named.model_definition`; empty: id and configuration are enough."""


@dataclass(frozen=True, slots=True)
class StoredModelInfo:
    """A model version with the information that is needed to build its network."""

    version: ModelVersion
    model_class: str
    model_config: dict[str, Any]
    training_result: dict[str, Any]
    model_definition: str = field(default="", kw_only=True)
    """See `ModelHeader`. `list` leaves it out."""


@dataclass(frozen=True, slots=True)
class StoredModel(StoredModelInfo):
    """A model version whose weights have been fetched into the safetensors file `path`."""

    path: Path

    @classmethod
    def of(cls, info: StoredModelInfo, path: Path) -> Self:
        """Add the path to the description of a version."""
        return cls(
            info.version, info.model_class, info.model_config, info.training_result, path, model_definition=info.model_definition
        )


@dataclass(frozen=True, slots=True)
class _PutVersion:
    """The model that a session stored last. The next training of a run usually starts from this model. optimizers: state of the optimizers; None: the
    state is missing, or too large to keep.
    """

    info: StoredModelInfo
    optimizers: bytes | None


@dataclass(frozen=True, slots=True)
class GateVerdict:
    """The verdict of an evaluation on one condition of a promotion."""

    condition: str
    """See `PromotionCondition`."""
    value: float | None
    """Metric value of the version that was to be promoted; None: the value is undefined."""
    promoted_value: float | None
    """Metric value of the version that was promoted at that time; None: the value was not compared, or is undefined."""
    passed: bool
    note: str = ""

    def __str__(self) -> str:
        """Return the verdict as a text for people."""
        value = "undefined" if self.value is None else f"{self.value:.6g}"
        other = "" if self.promoted_value is None else f", promoted {self.promoted_value:.6g}"
        note = f" ({self.note})" if self.note else ""
        return f"{self.condition}: {value}{other}, {'passed' if self.passed else 'not passed'}{note}"


@dataclass(frozen=True, slots=True)
class Promotion:
    """An entry of the audit trail, made when a version was promoted, refused or promoted again by a rollback."""

    run_id: RunId
    model_id: int
    action: str
    """`promote` or `rollback`; `refuse`: an evaluation refused the version, and nothing changed."""
    before_id: int | None
    """Id of the previously promoted version; None: no version was promoted. If this id equals `model_id`, the version was evaluated again, and
    nothing changed.
    """
    reason: str
    made_by: str
    """Name of the user on the client's machine, which the client reports."""
    made_at: float
    """Seconds since 1970."""
    verdicts: tuple[GateVerdict, ...] = ()
    """Verdicts on the conditions; empty: the promotion had no condition."""


@dataclass(frozen=True, slots=True)
class CurrentVersions:
    """The newest and the promoted version of a run."""

    newest_id: int | None = None
    """Id of the newest version; None: the run has no versions."""
    promoted_id: int | None = None
    """Id of the promoted version; None: no version is promoted."""
    newest_in_trail: bool = False
    """Whether the audit trail contains the newest version, because it was promoted, refused or rolled back."""


def weights_to_proto(message: type[M], file: BinaryIO) -> Iterator[M]:
    """Yield the content of a file as messages of at most CHUNK_BYTES, then a trailer with the size and SHA-256 of the file."""
    digest, num_bytes = hashlib.sha256(), 0
    file.seek(0)
    while chunk := file.read(CHUNK_BYTES):
        digest.update(chunk)
        num_bytes += len(chunk)
        yield message(chunk=chunk)
    yield message(trailer=model_storage_pb2.Trailer(num_bytes=num_bytes, sha256=digest.hexdigest()))


def weights_from_proto(messages: Iterable[M], file: BinaryIO) -> str:
    """Write the messages of `weights_to_proto` to a file, up to the trailer. Returns a text that describes the error in the content; empty: the
    content is complete.
    """
    digest, num_bytes = hashlib.sha256(), 0
    trailer: model_storage_pb2.Trailer | None = None
    for message in messages:
        match message.WhichOneof("part"):
            case "chunk":
                chunk = message.chunk
                file.write(chunk)
                digest.update(chunk)
                num_bytes += len(chunk)
            case "trailer":
                trailer = message.trailer
                break
            case _:
                return OUT_OF_ORDER
    if trailer is None:
        return f"ended after {num_bytes} bytes without a trailer: it is incomplete"
    if (trailer.num_bytes, trailer.sha256) != (num_bytes, digest.hexdigest()):
        return (
            f"was changed or cut on its way: {num_bytes} bytes arrived, {trailer.num_bytes} were sent, "
            f"SHA-256 {digest.hexdigest()} instead of {trailer.sha256}"
        )
    return ""


class ModelStorageClient(SectionClient):
    """Client of model storage, which uses the section `model_storage`."""

    _Stub = model_storage_pb2_grpc.ModelStorageStub
    _not_repeatable = frozenset({"Rollback", "RefusePromotion"})

    def put(
        self, header: ModelHeader, safetensors_path: Path, kept: KeptModels | None = None, optimizers: Path | None = None
    ) -> ModelVersion:
        """Store the weights of the file `safetensors_path`. Either the complete version becomes visible, or nothing is stored.

        If there is a run, the call is idempotent by (run, trigger): a second put returns the existing version.

        Args: kept: cache of the session, which also keeps this version for a later `get` and `get_optimizers`. optimizers: a file with the state of
        the optimizers. The state is stored with the version until a later version of the run is stored with its own state.
        """
        header = replace(header, has_optimizers=optimizers is not None)
        with ExitStack() as stack:
            files = [stack.enter_context(path.open("rb")) for path in (safetensors_path, optimizers) if path is not None]

            def requests() -> Iterator[model_storage_pb2.PutRequest]:
                yield model_storage_pb2.PutRequest(header=to_message(header, model_storage_pb2.ModelHeader))
                for file in files:
                    yield from weights_to_proto(model_storage_pb2.PutRequest, file)

            def put() -> StoredModelInfo:
                return from_message(self._stub.Put(requests()), StoredModelInfo)

            # Without a run a repeated put would store the model twice.
            info = self._retrier.call(put) if header.run_id else put()
        if kept is not None:
            kept.newest = None
            if _keep(kept, info.version, safetensors_path):
                fits = optimizers is not None and optimizers.stat().st_size <= kept.limit
                kept.newest = _PutVersion(info, optimizers.read_bytes() if optimizers is not None and fits else None)
        return info.version

    def get(self, model_id: int, into: Path, kept: KeptModels | None = None) -> StoredModel:
        """Fetch the weights of a version into the file `into`. The file appears only if it is complete and verified.

        Args: kept: cache of weights: cached weights are not fetched again, and fetched weights are added. If the cache has the weights of the version
        that was stored last, model storage is not called.
        Raises: NotFoundError: the version is unknown. CorruptStateError: the received content differs from the stored content.
        """
        if kept:
            newest = _newest(kept, model_id)
            info = self.describe(model_id) if newest is None else newest.info
            content = kept.get(info.version.weights_sha256)
            if content is not None:
                into.write_bytes(content)
                return StoredModel.of(info, into)
        stored = self._retrier.call(self._get, model_id, into)
        if kept is not None:
            _keep(kept, stored.version, into)
        return stored

    def _get(self, model_id: int, into: Path) -> StoredModel:
        replies = self._stub.Get(_named(model_id))
        first = next(replies, None)
        if first is None or first.WhichOneof("part") != "info":
            raise CorruptStateError(f"model {model_id} arrived without its description: it is incomplete; fetch it again")
        info = from_message(first.info, StoredModelInfo)
        _receive(replies, into, f"model {model_id}")
        return StoredModel.of(info, into)

    def get_optimizers(self, model_id: int, into: Path, kept: KeptModels | None = None) -> None:
        """Fetch the stored state of a version's optimizers into the file `into`. The file appears only if it is complete.

        Args: kept: cache of the session. If the version is the last version that was stored with this cache, the state is not fetched.
        Raises: NotFoundError: there is no such version, or the version has no saved state. CorruptStateError: the received content differs from the
        stored content.
        """

        newest = None if kept is None else _newest(kept, model_id)
        if newest is not None and newest.optimizers is not None:
            into.write_bytes(newest.optimizers)
            return

        def get() -> None:
            replies = self._stub.GetOptimizers(_named(model_id))
            _receive(replies, into, f"the state of the optimizers of model {model_id}")

        self._retrier.call(get)

    def describe(self, model_id: int) -> StoredModelInfo:
        """Return the description of a version, without its weights. Raises NotFoundError."""
        return from_message(self._stub.Describe(_named(model_id)), StoredModelInfo)

    def find(self, run_id: RunId, trigger_id: int) -> StoredModelInfo | None:
        """Return the version of trigger `trigger_id` of a run; None if no such version is stored."""
        try:
            found = self._stub.Find(model_storage_pb2.ModelOfTrigger(run_id=run_id, trigger_id=trigger_id))
        except NotFoundError:
            return None
        return from_message(found, StoredModelInfo)

    def list(self, run_id: RunId | None = None) -> list[StoredModelInfo]:
        """Return the versions of one run, in the order in which they were stored. Without a run, return all versions, including imported ones.

        The versions lack their `model_definition`.
        """
        request = model_storage_pb2.ListModelsRequest(run_id=run_id or "")
        return self._retrier.call(lambda: [from_message(model, StoredModelInfo) for model in self._stub.List(request)])

    def delete(self, model_id: int, *, even_promoted: bool = False) -> None:
        """Delete a version and its file. Raises: NotFoundError. ConflictError: the version is promoted, and `even_promoted` is false."""
        self._stub.Delete(model_storage_pb2.DeleteModelRequest(model_id=model_id, even_promoted=even_promoted))

    def promote(
        self,
        model_id: int,
        reason: str = "",
        verdicts: Sequence[GateVerdict] = (),
        *,
        compares: bool = False,
        compared_id: int | None = None,
    ) -> StoredModelInfo:
        """Promote a version. The version replaces the previously promoted version of the same run.

        Args: reason, verdicts: recorded in the audit trail. compares: whether a verdict compares with the promoted version. compared_id: id of that
        promoted version; None: no other version was promoted.
        Raises: NotFoundError. ConflictError: a verdict compares with `compared_id`, but another version is promoted now; evaluate again.
        """
        request = _promotion(model_id, reason, verdicts)
        request.compares = compares
        if compared_id is not None:
            request.compared_id = compared_id
        return from_message(self._stub.Promote(request), StoredModelInfo)

    def refuse_promotion(self, model_id: int, reason: str, verdicts: Sequence[GateVerdict]) -> None:
        """Record in the audit trail that an evaluation refused a promotion. Raises NotFoundError."""
        self._stub.RefusePromotion(_promotion(model_id, reason, verdicts))

    def rollback(self, run_id: RunId, reason: str = "") -> StoredModelInfo:
        """Promote again the version that was promoted before the current version. Each repetition goes back by one more promotion.

        Args: reason: recorded in the audit trail. Raises: NotFoundError: the run has no models. ConflictError: there is no earlier promoted version.
        """
        request = model_storage_pb2.RollbackRequest(run_id=run_id, reason=reason, made_by=_user())
        return from_message(self._stub.Rollback(request), StoredModelInfo)

    def current(self, run_id: RunId) -> CurrentVersions:
        """Return the newest and the promoted version of a run. This call is cheap enough for several calls per second."""
        return from_message(self._stub.Current(model_storage_pb2.CurrentRequest(run_id=run_id)), CurrentVersions)

    def promotions(self, run_id: RunId) -> tuple[Promotion, ...]:
        """Return the promotions and rollbacks of a run, the oldest first. Imported versions belong to the run ""."""
        reply = self._stub.Promotions(model_storage_pb2.PromotionsRequest(run_id=run_id))
        return tuple(from_message(entry, Promotion) for entry in reply.promotions)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        return str(os.getuid())


def _promotion(model_id: int, reason: str, verdicts: Sequence[GateVerdict]) -> model_storage_pb2.PromoteRequest:
    found = [to_message(verdict, model_storage_pb2.GateVerdict) for verdict in verdicts]
    number = _named(model_id).model_id
    return model_storage_pb2.PromoteRequest(model_id=number, reason=reason, made_by=_user(), verdicts=found)


def _named(model_id: int) -> model_storage_pb2.ModelId:
    try:
        return model_storage_pb2.ModelId(model_id=model_id)
    except (TypeError, ValueError):
        raise InvalidArgumentError(
            f"{model_id!r} is not a model id: it is a whole number; `modyn models ls` lists those that exist"
        ) from None


def _receive(replies: Iterable[model_storage_pb2.GetReply], into: Path, what: str) -> None:
    """Write chunks to the file `into`. The file appears only if the chunks are complete. Raises CorruptStateError: the chunks are incomplete; the
    message begins with `what`.
    """
    partial = into.with_name(f"{into.name}.{uuid.uuid4().hex}.partial")
    try:
        with partial.open("wb") as file:
            if problem := weights_from_proto(replies, file):
                raise CorruptStateError(f"{what} {problem}; fetch it again")
        os.replace(partial, into)
    finally:
        partial.unlink(missing_ok=True)


def _keep(kept: KeptModels, version: ModelVersion, path: Path) -> bool:
    """Keep the weights in `path` if they are the weights of `version`. The version of a repeated put may have other weights. Returns: whether the
    weights were kept.
    """
    if path.stat().st_size > kept.limit or weights_sha256(path) != version.weights_sha256:
        return False
    kept.put(version.weights_sha256, path.read_bytes())
    return True


def _newest(kept: KeptModels, model_id: int) -> _PutVersion | None:
    """Return the kept data of a version, if this version was stored last; otherwise None."""
    newest: _PutVersion | None = kept.newest
    return newest if newest is not None and newest.info.version.model_id == model_id else None
