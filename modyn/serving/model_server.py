"""All models that one process serves: loads versions, exchanges the routing table, and sends each request to the batcher of one version."""

from __future__ import annotations

import itertools
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Final

from modyn.errors import ConflictError, ModynError
from modyn.periodic_task import PeriodicTask
from modyn.records import VersionRole
from modyn.rpc.logs import get_logger
from modyn.serving import metrics
from modyn.serving.batch_queue import BatchLimits
from modyn.serving.batcher import BatchedRequest, Outcome
from modyn.serving.infer import InferAnswer, InferRequest
from modyn.serving.predictor import VersionLoader, VersionName, warm_up
from modyn.serving.routing import Canary, ModelRoutes, RoutingTable, to_retire
from modyn.serving.shadow import ShadowComparer, ShadowPair, dropped
from modyn.serving.signature import ModelSignature, Tensors
from modyn.serving.versions import LoadedVersion, VersionState

_LOOK_S: Final = 0.02
"""Between two looks for requests whose deadline has passed."""


@dataclass(frozen=True, slots=True)
class ModelServerLimits:
    """Bounds of one model server."""

    batches: BatchLimits = field(default_factory=BatchLimits)
    threads: int = 1
    """That predict, for each version."""
    warm_up_batches: int = 4
    standby: int = 1
    """Versions of a model that served before and stay in memory, for a rollback at once."""


@dataclass(slots=True)
class InferTicket:
    """A request that was accepted."""

    version: LoadedVersion
    request: BatchedRequest

    def cancel(self) -> None:
        """End it with CancelledError, unless it has ended."""
        self.version.batcher.cancel(self.request)


@dataclass(frozen=True, slots=True)
class Swap:
    """A change of the version that serves."""

    name: VersionName
    before: str | None
    load_s: float
    """Loading and warming up, while the version before served; 0: it was warm."""
    exchange_s: float
    """The exchange of the routing table."""


class ModelServer:
    """Thread-safe. A request is answered by the version that it was sent to when it came, whatever changes meanwhile.

    Args: load: makes the predictor of a version. answered: called with each request and its answer, by the thread that predicted it, before the
    client gets it. took: called with the version of a request, its role and the seconds until the answer, errors included. Both must neither block
    nor raise. models: names for which requests end with UnavailableError, not NotFoundError, and that are not ready, until a version is loaded.
    """

    def __init__(
        self,
        load: VersionLoader,
        limits: ModelServerLimits | None = None,
        answered: Callable[[InferRequest, InferAnswer], object] = lambda *_: None,
        took: Callable[[VersionName, VersionRole, float], object] = lambda *_: None,
        models: Iterable[str] = (),
    ) -> None:
        self._load, self._limits, self._answered, self._took = load, limits or ModelServerLimits(), answered, took
        self._logger = get_logger("serving")
        # Replaced as one. Read without a lock.
        self._table: RoutingTable[LoadedVersion] = RoutingTable({name: ModelRoutes() for name in models})
        self._loading: dict[VersionName, None] = {}
        self._served_order: dict[VersionName, int] = {}
        self._kept: set[VersionName] = set()  # loaded by `load`
        self._reserved: Counter[VersionName] = Counter()  # about to serve, or to be canary or shadow
        self._numbers = itertools.count()
        self._retiring: list[LoadedVersion] = []  # not in the table any more, but requests may wait for them
        self._changing = threading.Lock()  # Protects the making of the next table, and the fields above.
        self._one_load = threading.Lock()  # One version is loaded at a time: memory holds at most one more than is needed.
        self._closed = False
        self._comparer = ShadowComparer()
        self._ids, self._id_prefix = itertools.count(), secrets.token_hex(6)
        self._overdue = PeriodicTask("serving-deadlines", _LOOK_S, [self._end_overdue], self._report)
        self._overdue.start()

    # Requests

    def infer(
        self,
        request: InferRequest,
        done: Callable[[InferAnswer | ModynError], None],
        soon: Callable[[Callable[[], None]], object] | None = None,
        at_once: bool = False,
    ) -> InferTicket:
        """Check a request and have it predicted.

        Args: done: called once with the answer or an error, by another thread or in this one; it must neither block nor raise. soon: calls what it
        is given in this thread, soon: there a quick model predicts what has come. at_once: a quick model predicts here, before this returns, which
        is for a request that no other comes with. Without either, other threads predict.
        Raises: NotFoundError: model or version are unknown. InvalidArgumentError: tensors do not fit. OverloadedError: the queue is full.
        UnavailableError: no version serves yet. In these cases `done` is not called.
        """
        started = time.perf_counter()
        request_id = request.request_id or f"{self._id_prefix}-{next(self._ids)}"
        try:
            return self._begin(request, request_id, done, soon, at_once, started)
        except ModynError as error:
            metrics.count_error(self._table.models, request.model, error.reason)
            raise

    def _begin(
        self,
        request: InferRequest,
        request_id: str,
        done: Callable[[InferAnswer | ModynError], None],
        soon: Callable[[Callable[[], None]], object] | None,
        at_once: bool,
        started: float,
    ) -> InferTicket:
        while True:
            route = self._table.route(request.model, request.version, request_id)
            version = route.target
            # A version that has retired since the table was read is not in the newest one, from which is chosen again.
            if version.begin():
                break
        pair = None if route.shadow is None else ShadowPair(self._comparer, route.shadow.name, request_id, route.shadow.end)

        def ended(outcome: Outcome) -> None:
            if isinstance(outcome, ModynError):
                metrics.ERRORS.labels(request.model, outcome.reason).inc()
            answer = outcome if isinstance(outcome, ModynError) else self._answer(request, request_id, version, outcome)
            if not isinstance(answer, ModynError):
                self._answered(request, answer)
            seconds = time.perf_counter() - started
            self._took(version.name, route.role, seconds)
            version.took(seconds)
            done(answer)
            version.end()
            if pair is not None:
                pair.answered(outcome)

        try:
            version.signature.check_wanted(request.outputs)
            is_quick = version.batcher.is_quick
            inline, at_once = is_quick and soon is not None, is_quick and at_once
            submitted = version.batcher.submit(request.inputs, ended, request.timeout_s, inline=inline, at_once=at_once)
        except BaseException:
            version.end()
            raise
        if pair is not None and route.shadow is not None:
            self._send_copy(request, route.shadow, pair)
        if soon is not None and inline:
            soon(version.batcher.run_due)
        return InferTicket(version, submitted)

    def _send_copy(self, request: InferRequest, shadow: LoadedVersion, pair: ShadowPair) -> None:
        if not shadow.begin():
            return dropped(shadow.name)

        try:
            shadow.batcher.submit(request.inputs, pair.shadowed)
        except ModynError:  # its queue is full, or it takes other inputs: counted, since the client has its answer from elsewhere
            shadow.end()
            dropped(shadow.name)
        return None

    def _answer(self, request: InferRequest, request_id: str, version: LoadedVersion, outputs: Tensors) -> InferAnswer:
        wanted = {name: outputs[name] for name in request.outputs or version.signature.output_names}
        return InferAnswer(request.model, version.name.version, request_id, wanted)

    def check_inputs(self, model: str, inputs: Tensors) -> None:
        """Check inputs as `infer` would for the version that serves, as far as that goes without its model.

        Raises: InvalidArgumentError: they do not fit. NotFoundError: there is no such model. UnavailableError: no version of it serves yet.
        """
        while not (served := self._table.serving(model)).begin():
            pass  # it has retired since the table was read, so another one serves in the newest one
        try:
            served.check(inputs)
        finally:
            served.end()

    # Versions

    def load(self, name: VersionName) -> float:
        """Load a version and warm it up, unless it is warm; requests that name it are answered from then on, until `close`.

        Returns: seconds that it took; 0: it was warm. Raises: as the loader. ConflictError: the server is closed.
        """
        self._kept.add(name)
        try:
            return self._ensure_warm(name)
        except BaseException:
            self._kept.discard(name)
            raise

    def _ensure_warm(self, name: VersionName) -> float:
        if self._is_warm(name):  # at once, also while another one is loaded
            return 0.0
        with self._one_load:
            if self._is_warm(name):
                return 0.0
            if self._closed:
                raise ConflictError(f"the server is closed; {name} is not loaded")
            started = time.perf_counter()
            self._loading[name] = None
            try:
                predictor = self._load(name)
                warm_up(predictor, self._limits.warm_up_batches)
                metrics.forget_inputs(name, predictor.signature)  # zeros are unlike what clients send
            finally:
                del self._loading[name]
            # Held so that what is counted of this version is not forgotten with one of its name that was unloaded.
            with self._changing:
                counters = metrics.batch_reporter(name.model), metrics.request_timer(name)
                made = LoadedVersion(name, predictor, self._limits.batches, self._limits.threads, *counters)
                self._table = self._table.with_version(name.model, name.version, made)
            seconds = time.perf_counter() - started
            metrics.LOAD_SECONDS.labels(name.model).observe(seconds)
            self._logger.info("version_loaded", model=name.model, version=name.version, seconds=round(seconds, 3))
            return seconds

    @contextmanager
    def _warm(self, name: VersionName) -> Iterator[float]:
        """Load a version, and keep it in memory until the block has put it to use. Yields the seconds that loading took."""
        with self._changing:
            self._reserved[name] += 1
        try:
            yield self._ensure_warm(name)
        finally:
            with self._changing:
                self._reserved[name] -= 1
                if not self._reserved[name]:
                    del self._reserved[name]

    def swap(self, name: VersionName) -> Swap:
        """Let a version serve: load it in the background of the one before, then exchange the table at once.

        The version before stays in memory as standby, and older ones are unloaded when their last request has ended.
        Raises: as `load`; what served before serves on.
        """
        done = self.swap_if(name, lambda: True)
        assert done is not None
        return done

    def swap_if(self, name: VersionName, wanted: Callable[[], bool]) -> Swap | None:
        """As `swap`, if it is still wanted once the version is warm; returns None, and the version may be unloaded, if not."""
        with self._warm(name) as load_s:
            started = time.perf_counter()
            with self._changing:
                if not wanted():
                    return None
                before = self._table.routes(name.model).serving
                if before == name.version:
                    return Swap(name, before, load_s, 0.0)
                self._exchange(name, before)
                exchange_s = time.perf_counter() - started
                self._retire_old(name.model)
        metrics.SWAPS.labels(name.model).inc()
        metrics.SWAP_SECONDS.labels(name.model).observe(exchange_s)
        took = {"load_s": round(load_s, 4), "exchange_s": round(exchange_s, 6)}
        self._logger.info("version_serves", model=name.model, version=name.version, before=before, **took)
        return Swap(name, before, load_s, exchange_s)

    def _exchange(self, name: VersionName, before: str | None) -> None:
        """Called with `_changing` held."""
        table = self._table.with_serving(name.model, name.version)
        versions = table.routes(name.model).versions
        versions[name.version].become(VersionState.SERVING)
        self._table = table
        self._served_order[name] = next(self._numbers)
        metrics.SERVING_VERSION.labels(name.model, name.version).set(1)
        if before is not None:
            versions[before].become(VersionState.WARM)
            metrics.SERVING_VERSION.remove(name.model, before)

    def set_canary(self, model: str, canary: Canary | None) -> None:
        """Let a version answer a share of the requests, chosen by request id; it is loaded first. None: end that. Raises: as `load`."""
        with self._warm(VersionName(model, canary.version)) if canary is not None else nullcontext(), self._changing:
            self._table = self._table.with_canary(model, canary)
            self._retire_old(model)

    def set_shadow(self, model: str, version: str | None) -> None:
        """Send a version copies of the requests; it is loaded first. None: end that. Raises: as `load`."""
        with self._warm(VersionName(model, version)) if version is not None else nullcontext(), self._changing:
            self._table = self._table.with_shadow(model, version)
            self._retire_old(model)

    def is_ready(self, model: str | None = None, version: str | None = None) -> bool:
        """Whether requests are answered: of a version, of a model without a version, or of all models; False also for unknown ones."""
        if self._closed:
            return False
        models = self._table.models
        if model is None:
            return bool(models) and all(routes.serving is not None for routes in models.values())
        if model not in models:
            return False
        return models[model].serving is not None if version is None else version in models[model].versions

    def table(self) -> RoutingTable[LoadedVersion]:
        """The table that routes requests now."""
        return self._table

    def states(self, model: str) -> dict[str, VersionState]:
        """The state of each version of a model that is in memory or being loaded. Raises NotFoundError: the model is unknown."""
        found = {name.version: VersionState.LOADING for name in list(self._loading) if name.model == model}
        if not found or model in self._table.models:
            found |= {version: loaded.state for version, loaded in self._table.routes(model).versions.items()}
        return found

    def metadata(self, model: str, version: str | None = None) -> tuple[ModelSignature, list[str]]:
        """Return the signature of the version that serves (or of the one that is named), and all versions that are loaded.

        Raises: NotFoundError: model or version are unknown. UnavailableError: no version serves yet.
        """
        table = self._table
        routes = table.routes(model)
        versions = sorted(routes.versions, key=lambda name: (len(name), name))  # by number
        return table.route(model, version or routes.serving, "").target.signature, versions

    def close(self, drain_s: float = 10.0) -> bool:
        """Answer what was accepted, for at most so many seconds, then unload all versions. Returns whether all was answered.

        Requests that come meanwhile are answered as well: stop the protocols' servers first.
        """
        with self._changing:
            self._closed = True
            versions = [version for routes in self._table.models.values() for version in routes.versions.values()]
            self._table = RoutingTable()
            for version in versions:
                version.become(VersionState.RETIRING)
        give_up = time.monotonic() + drain_s
        ended = [version.batcher.join(max(0.0, give_up - time.monotonic())) for version in versions]
        self._overdue.close()
        self._comparer.close()
        return all(ended)

    def _is_warm(self, name: VersionName) -> bool:
        routes = self._table.models.get(name.model)
        return routes is not None and name.version in routes.versions

    def _retire_old(self, model: str) -> None:
        """Called with `_changing` held."""
        routes = self._table.routes(model)
        order = {name.version: number for name, number in self._served_order.items() if name.model == model}
        for version in to_retire(routes, order, self._limits.standby):
            name = VersionName(model, version)
            if name not in self._kept and name not in self._reserved:
                self._remove(name)

    def _remove(self, name: VersionName) -> None:
        """Called with `_changing` held."""
        loaded = self._table.routes(name.model).versions.get(name.version)
        self._table = self._table.without_version(name.model, name.version)
        self._served_order.pop(name, None)
        if loaded is not None:
            self._retiring.append(loaded)
            loaded.become(VersionState.RETIRING)
        self._logger.info("version_retires", model=name.model, version=name.version)

    def _end_overdue(self) -> None:
        with self._changing:
            unloaded = [version for version in self._retiring if version.state is VersionState.UNLOADED]
            self._retiring = [version for version in self._retiring if version.state is not VersionState.UNLOADED]
            retiring = list(self._retiring)
            for version in unloaded:
                if not self._is_warm(version.name):  # it may have been loaded again
                    metrics.forget_version(version.name.model, version.name.version)
                    metrics.forget_inputs(version.name, version.signature)
        for version in retiring:
            version.batcher.end_overdue()
        for model, routes in self._table.models.items():
            for version in routes.versions.values():
                version.batcher.end_overdue()
            metrics.QUEUE_LENGTH.labels(model).set(sum(version.batcher.num_waiting for version in routes.versions.values()))

    def _report(self, error: Exception) -> None:
        self._logger.error("serving_deadlines_failed", exc_info=error)
