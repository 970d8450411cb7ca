"""Typed client of model storage, with its records and the stream in which weights travel: a safetensors file, which is never executed."""

from __future__ import annotations

import getpass
import hashlib
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, TypeVar

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
    """Description of a model that is put."""

    run_id: RunId
    """Empty for a model that a user imports; such a put is not idempotent."""
    trigger_id: int
    model_class: str
    """Registered id in `modyn.models`."""
    model_config: Mapping[str, Any] = field(default_factory=dict)
    model_storage: Mapping[str, Any] = field(default_factory=dict)
    """That section of the pipeline; empty: whole, as safetensors."""
    training_result: Mapping[str, Any] = field(default_factory=dict)
    """Report of the trainer: counts, losses, seconds a stage."""
    parent_id: int | None = None
    """The version that this one was fine-tuned from."""
    has_optimizers: bool = False
    """Whether the state of the optimizers goes with it; set by `put`."""


@dataclass(frozen=True, slots=True)
class StoredModelInfo:
    """A model version and what is needed to build its network again."""

    version: ModelVersion
    model_class: str
    model_config: dict[str, Any]
    training_result: dict[str, Any]


@dataclass(frozen=True, slots=True)
class StoredModel(StoredModelInfo):
    """A model version whose weights have been fetched into the safetensors file `path`."""

    path: Path


@dataclass(frozen=True, slots=True)
class _PutVersion:
    """What a session has put last: the next training of a run mostly starts from it. optimizers: their state; None: none, or too large a one."""

    info: StoredModelInfo
    optimizers: bytes | None


@dataclass(frozen=True, slots=True)
class GateVerdict:
    """What an evaluation said about one condition of a promotion."""

    condition: str
    """As `PromotionCondition` reads it."""
    value: float | None
    """Of the version that was to be promoted; None: undefined."""
    promoted_value: float | None
    """Of the version that was promoted; None: not compared, or undefined."""
    passed: bool
    note: str = ""

    def __str__(self) -> str:
        """For people."""
        value = "undefined" if self.value is None else f"{self.value:.6g}"
        other = "" if self.promoted_value is None else f", promoted {self.promoted_value:.6g}"
        note = f" ({self.note})" if self.note else ""
        return f"{self.condition}: {value}{other}, {'passed' if self.passed else 'not passed'}{note}"


@dataclass(frozen=True, slots=True)
class Promotion:
    """An entry of the audit trail: a version became the one to use."""

    run_id: RunId
    model_id: int
    action: str
    """`promote` or `rollback`; `refuse`: an evaluation was against it, and nothing changed."""
    before_id: int | None
    """The version that was promoted until then; None: none was. `model_id` itself: it was judged once more, and nothing changed."""
    reason: str
    made_by: str
    """Name of the user at the client's machine, as the client says."""
    made_at: float
    """Seconds since 1970."""
    verdicts: tuple[GateVerdict, ...] = ()
    """Empty: no condition was asked for."""


@dataclass(frozen=True, slots=True)
class CurrentVersions:
    """The versions of a run that those who follow it ask for."""

    newest_id: int | None = None
    """None: it has no versions."""
    promoted_id: int | None = None
    """None: none is promoted."""
    newest_in_trail: bool = False
    """Whether the newest one stands in the audit trail: it was promoted, refused or taken back."""


def weights_to_proto(message: type[M], file: BinaryIO) -> Iterator[M]:
    """Yield the content of a file as messages of at most CHUNK_BYTES, then the trailer with its size and SHA-256."""
    digest, num_bytes = hashlib.sha256(), 0
    file.seek(0)
    while chunk := file.read(CHUNK_BYTES):
        digest.update(chunk)
        num_bytes += len(chunk)
        yield message(chunk=chunk)
    yield message(trailer=model_storage_pb2.Trailer(num_bytes=num_bytes, sha256=digest.hexdigest()))


def weights_from_proto(messages: Iterable[M], file: BinaryIO) -> str:
    """Write what `weights_to_proto` yielded to a file, up to the trailer. Returns what is wrong, for a message; empty: the content is complete."""
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
    """Calls of model storage, which acts on the section `model_storage`."""

    _Stub = model_storage_pb2_grpc.ModelStorageStub
    _not_repeatable = frozenset({"Rollback", "RefusePromotion"})

    def put(
        self, header: ModelHeader, safetensors_path: Path, kept: KeptModels | None = None, optimizers: Path | None = None
    ) -> ModelVersion:
        """Store the weights in `safetensors_path`. The version is visible at once or not at all.

        Idempotent by (run, trigger) if there is a run: a second put returns the version that exists.

        Args: kept: the version is put into it too, for a later `get` and `get_optimizers`. optimizers: a file with the state of the optimizers,
        which is stored with the version until a later one of the run is put with one.
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
        """Fetch the weights of a version into the file `into`, which appears complete and verified or not at all.

        Args: kept: what is in it is not fetched again, and what is fetched is put into it; model storage is not asked for what was put last.
        Raises: NotFoundError: the version is unknown. CorruptStateError: what arrived is not what was stored.
        """
        if kept:
            newest = _newest(kept, model_id)
            info = self.describe(model_id) if newest is None else newest.info
            content = kept.get(info.version.weights_sha256)
            if content is not None:
                into.write_bytes(content)
                return StoredModel(info.version, info.model_class, info.model_config, info.training_result, into)
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
        return StoredModel(info.version, info.model_class, info.model_config, info.training_result, into)

    def get_optimizers(self, model_id: int, into: Path, kept: KeptModels | None = None) -> None:
        """Fetch the state of the optimizers that a version was put with into the file `into`, which appears complete or not at all.

        Args: kept: what was put last with it is not fetched.
        Raises: NotFoundError: there is no such version, or it has none. CorruptStateError: what arrived is not what was stored.
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
        """Return what is known of a version without its weights. Raises NotFoundError."""
        return from_message(self._stub.Describe(_named(model_id)), StoredModelInfo)

    def find(self, run_id: RunId, trigger_id: int) -> StoredModelInfo | None:
        """Return the version of trigger `trigger_id` of a run; None if none is stored."""
        try:
            found = self._stub.Find(model_storage_pb2.ModelOfTrigger(run_id=run_id, trigger_id=trigger_id))
        except NotFoundError:
            return None
        return from_message(found, StoredModelInfo)

    def list(self, run_id: RunId | None = None) -> list[StoredModelInfo]:
        """Return the versions of one run (or all, with imported ones), in the order in which they were put."""
        request = model_storage_pb2.ListModelsRequest(run_id=run_id or "")
        return self._retrier.call(lambda: [from_message(model, StoredModelInfo) for model in self._stub.List(request)])

    def delete(self, model_id: int, *, even_promoted: bool = False) -> None:
        """Delete a version and its file. Raises NotFoundError, or ConflictError while it is promoted, unless `even_promoted`."""
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
        """Mark a version as the one to use, in place of the one of the same run that was promoted before.

        Args: reason, verdicts: for the audit trail. compares: a verdict compares with the promoted version. compared_id: that version; None: no
        other one was promoted.
        Raises: NotFoundError. ConflictError: the verdicts compare, and another version than `compared_id` is promoted by now; evaluate again.
        """
        request = _promotion(model_id, reason, verdicts)
        request.compares = compares
        if compared_id is not None:
            request.compared_id = compared_id
        return from_message(self._stub.Promote(request), StoredModelInfo)

    def refuse_promotion(self, model_id: int, reason: str, verdicts: Sequence[GateVerdict]) -> None:
        """Note in the audit trail that an evaluation was against a promotion. Raises NotFoundError."""
        self._stub.RefusePromotion(_promotion(model_id, reason, verdicts))

    def rollback(self, run_id: RunId, reason: str = "") -> StoredModelInfo:
        """Mark the version of a run again that was promoted before the one that is; again, and it goes one step further back.

        Args: reason: for the audit trail. Raises: NotFoundError: the run has no models. ConflictError: there is none to go back to.
        """
        request = model_storage_pb2.RollbackRequest(run_id=run_id, reason=reason, made_by=_user())
        return from_message(self._stub.Rollback(request), StoredModelInfo)

    def current(self, run_id: RunId) -> CurrentVersions:
        """Return the newest version of a run and the promoted one. Cheap: a follower may ask several times a second."""
        return from_message(self._stub.Current(model_storage_pb2.CurrentRequest(run_id=run_id)), CurrentVersions)

    def promotions(self, run_id: RunId) -> tuple[Promotion, ...]:
        """Return the promotions and rollbacks of a run, the oldest first. Imported versions are those of the run ""."""
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
            f"{model_id!r} is no model id: it is a whole number; `modyn models ls` lists those that exist"
        ) from None


def _receive(replies: Iterable[model_storage_pb2.GetReply], into: Path, what: str) -> None:
    """Write chunks to the file `into`, which appears if they are complete. Raises CorruptStateError, which begins with `what`, otherwise."""
    partial = into.with_name(f"{into.name}.{uuid.uuid4().hex}.partial")
    try:
        with partial.open("wb") as file:
            if problem := weights_from_proto(replies, file):
                raise CorruptStateError(f"{what} {problem}; fetch it again")
        os.replace(partial, into)
    finally:
        partial.unlink(missing_ok=True)


def _keep(kept: KeptModels, version: ModelVersion, path: Path) -> bool:
    """Keep the weights in `path` if they are those of `version`: a repeated put returns a version that may have others. Returns: whether they are."""
    if path.stat().st_size > kept.limit or weights_sha256(path) != version.weights_sha256:
        return False
    kept.put(version.weights_sha256, path.read_bytes())
    return True


def _newest(kept: KeptModels, model_id: int) -> _PutVersion | None:
    """What is kept of a version, if it was put last."""
    newest: _PutVersion | None = kept.newest
    return newest if newest is not None and newest.info.version.model_id == model_id else None
