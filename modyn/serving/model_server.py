"""Model server of one process. The server loads versions, replaces the routing table, and sends each request to the batcher of one version."""

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
from modyn.serving import prometheus
from modyn.serving.batch_queue import BatchedRequest, BatchLimits, Outcome
from modyn.serving.messages.infer import InferAnswer, InferRequest
from modyn.serving.messages.signature import ModelSignature, Tensors
from modyn.serving.versions.loaded_version import LoadedVersion, VersionState
from modyn.serving.versions.predictor import VersionLoader, VersionName, warm_up
from modyn.serving.versions.routing import Canary, ModelRoutes, RoutingTable, to_retire
from modyn.serving.versions.shadow import ShadowComparer, ShadowPair, count_dropped

_LOOK_S: Final = 0.02
"""Seconds between two searches for requests with a passed deadline."""


@dataclass(frozen=True, slots=True)
class ModelServerLimits:
    """Bounds of one model server."""

    batches: BatchLimits = field(default_factory=BatchLimits)
    threads: int = 1
    """Number of threads that predict, for each version."""
    warm_up_batches: int = 4
    standby: int = 1
    """Number of earlier serving versions of a model that stay in memory for a quick rollback."""


@dataclass(slots=True)
class InferTicket:
    """An accepted request."""

    version: LoadedVersion
    request: BatchedRequest

    def cancel(self) -> None:
        """End the request with CancelledError, unless the request has ended."""
        self.version.batcher.cancel(self.request)


@dataclass(frozen=True, slots=True)
class Swap:
    """A change of the version that serves."""

    name: VersionName
    before: str | None
    load_s: float
    """Seconds of loading and warming up the new version, while the earlier version served; 0: the new version was warm already."""
    exchange_s: float
    """Seconds of replacing the routing table."""


class ModelServer:
    """Answers requests with the versions of several models. Thread-safe. A request is routed to a version on arrival, and this version answers the
    request even if the routes change meanwhile.

    Args: load: makes the predictor of a version. on_answer: called with each request and its answer, by the predicting thread, before the client
    gets the answer. on_end: called with the version of a request, its role and the seconds until its answer or error. Neither callback may block
    or raise. models: names of known models. Until a version of a known model is loaded, requests to this model end with UnavailableError instead
    of NotFoundError, and the model is not ready.
    """

    def __init__(
        self,
        load: VersionLoader,
        limits: ModelServerLimits | None = None,
        on_answer: Callable[[InferRequest, InferAnswer], object] = lambda *_: None,
        on_end: Callable[[VersionName, VersionRole, float], object] = lambda *_: None,
        models: Iterable[str] = (),
    ) -> None:
        self._load, self._limits, self._on_answer, self._on_end = load, limits or ModelServerLimits(), on_answer, on_end
        self._logger = get_logger("serving")
        # The table is replaced as a whole, so that readers need no lock.
        self._table: RoutingTable[LoadedVersion] = RoutingTable({name: ModelRoutes() for name in models})
        self._loading: dict[VersionName, None] = {}
        self._served_order: dict[VersionName, int] = {}
        self._kept: set[VersionName] = set()  # versions that `load` has loaded, which stay in memory until `close`
        self._reserved: Counter[VersionName] = Counter()  # versions that will serve or become canary or shadow
        self._numbers = itertools.count()
        self._retiring: list[LoadedVersion] = []  # versions that left the table but may still have requests
        self._changing = threading.Lock()  # Protects the replacement of the table, and the fields above.
        self._one_load = threading.Lock()  # Held while a version is loaded, so that memory contains at most one spare version.
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
        """Check a request and start its prediction.

        Args: done: called once with the answer or an error, by any thread; this function must neither block nor raise. soon: schedules a call in
        this thread, in which a quick model predicts all requests so far. at_once: lets a quick model predict in this call, for a request that
        arrives alone. Without `soon` and `at_once`, other threads predict. Raises, without a call of `done`: NotFoundError: the model or version
        is unknown. InvalidArgumentError: the tensors do not fit. OverloadedError: the queue is full. UnavailableError: no version serves yet.
        """
        started = time.perf_counter()
        request_id = request.request_id or f"{self._id_prefix}-{next(self._ids)}"
        try:
            return self._begin(request, request_id, done, soon, at_once, started)
        except ModynError as error:
            prometheus.count_error(self._table.models, request.model, error.reason)
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
            # If the version has retired since the table was read, the request is routed again by the newest table, which does not contain that
            # version.
            if version.begin():
                break
        pair = None if route.shadow is None else ShadowPair(self._comparer, route.shadow.name, request_id, route.shadow.end)

        def end(outcome: Outcome) -> None:
            if isinstance(outcome, ModynError):
                prometheus.ERRORS.labels(request.model, outcome.reason).inc()
            answer = outcome if isinstance(outcome, ModynError) else self._answer(request, request_id, version, outcome)
            if not isinstance(answer, ModynError):
                self._on_answer(request, answer)
            seconds = time.perf_counter() - started
            self._on_end(version.name, route.role, seconds)
            version.took(seconds)
            done(answer)
            version.end()
            if pair is not None:
                pair.add_answer(outcome)

        try:
            version.signature.check_wanted(request.outputs)
            is_quick = version.batcher.is_quick
            inline, at_once = is_quick and soon is not None, is_quick and at_once
            submitted = version.batcher.submit(request.inputs, end, request.timeout_s, inline=inline, at_once=at_once)
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
            return count_dropped(shadow.name)
        try:
            shadow.batcher.submit(request.inputs, pair.add_shadow)
        except ModynError:  # the shadow's queue is full, or the shadow takes other inputs; another version answers the client
            shadow.end()
            count_dropped(shadow.name)
        return None

    def _answer(self, request: InferRequest, request_id: str, version: LoadedVersion, outputs: Tensors) -> InferAnswer:
        wanted = {name: outputs[name] for name in request.outputs or version.signature.output_names}
        return InferAnswer(request.model, version.name.version, request_id, wanted)

    def check_inputs(self, model: str, inputs: Tensors) -> None:
        """Check inputs as `infer` does for the serving version, without calling the model.

        Raises: InvalidArgumentError: the inputs do not fit. NotFoundError: there is no such model. UnavailableError: no version of the model serves
        yet.
        """
        while not (served := self._table.serving(model)).begin():
            pass  # the version has retired since the table was read: take the serving version of the newest table
        try:
            served.check(inputs)
        finally:
            served.end()

    # Versions

    def load(self, name: VersionName) -> float:
        """Load a version and warm it up, unless the version is warm. Until `close`, the version answers requests that name it.

        Returns: seconds that loading took; 0: the version was warm. Raises: the errors of the loader. ConflictError: the server is closed.
        """
        self._kept.add(name)
        try:
            return self._ensure_warm(name)
        except BaseException:
            self._kept.discard(name)
            raise

    def _ensure_warm(self, name: VersionName) -> float:
        if self._is_warm(name):  # do not wait for another version that is being loaded
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
                prometheus.forget_inputs(name, predictor.signature)  # the warm-up has counted zeros as inputs
            finally:
                del self._loading[name]
            # Without the lock, `_end_overdue` could unload an older version of the same name, and remove the new counters.
            with self._changing:
                counters = prometheus.batch_reporter(name.model), prometheus.request_timer(name)
                made = LoadedVersion(name, predictor, self._limits.batches, self._limits.threads, *counters)
                self._table = self._table.with_version(name.model, name.version, made)
            seconds = time.perf_counter() - started
            prometheus.LOAD_SECONDS.labels(name.model).observe(seconds)
            self._logger.info("version_loaded", model=name.model, version=name.version, seconds=round(seconds, 3))
            return seconds

    @contextmanager
    def _warm(self, name: VersionName) -> Iterator[float]:
        """Load a version and keep it in memory during the block, in which the caller assigns a role to the version. Yields the seconds of loading."""
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
        """Let a version serve: load the version while the earlier version serves, then replace the table.

        The earlier version stays in memory as standby. Older versions are unloaded when their last request has ended.
        Raises: the errors of `load`; after an error, the earlier version still serves.
        """
        done = self.swap_if(name, lambda: True)
        assert done is not None
        return done

    def swap_if(self, name: VersionName, wanted: Callable[[], bool]) -> Swap | None:
        """Load a version, and let it serve as `swap` does if `wanted` then returns true. Returns None if `wanted` returns false; in this case the
        version may be unloaded.
        """
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
        prometheus.SWAPS.labels(name.model).inc()
        prometheus.SWAP_SECONDS.labels(name.model).observe(exchange_s)
        took = {"load_s": round(load_s, 4), "exchange_s": round(exchange_s, 6)}
        self._logger.info("version_serves", model=name.model, version=name.version, before=before, **took)
        return Swap(name, before, load_s, exchange_s)

    def _exchange(self, name: VersionName, before: str | None) -> None:
        """Let a version serve. The caller holds `_changing`."""
        table = self._table.with_serving(name.model, name.version)
        versions = table.routes(name.model).versions
        versions[name.version].become(VersionState.SERVING)
        self._table = table
        self._served_order[name] = next(self._numbers)
        prometheus.SERVING_VERSION.labels(name.model, name.version).set(1)
        if before is not None:
            versions[before].become(VersionState.WARM)
            prometheus.SERVING_VERSION.remove(name.model, before)

    def set_canary(self, model: str, canary: Canary | None) -> None:
        """Load a version and let it answer a share of the requests, chosen by request id; None: remove the canary. Raises: the errors of `load`."""
        with self._warm(VersionName(model, canary.version)) if canary is not None else nullcontext(), self._changing:
            self._table = self._table.with_canary(model, canary)
            self._retire_old(model)

    def set_shadow(self, model: str, version: str | None) -> None:
        """Load a version and send it copies of the requests; None: remove the shadow. Raises: the errors of `load`."""
        with self._warm(VersionName(model, version)) if version is not None else nullcontext(), self._changing:
            self._table = self._table.with_shadow(model, version)
            self._retire_old(model)

    def is_ready(self, model: str | None = None, version: str | None = None) -> bool:
        """Whether requests to all models, to one model, or to one version are answered. False for an unknown model or version."""
        if self._closed:
            return False
        models = self._table.models
        if model is None:
            return bool(models) and all(routes.serving is not None for routes in models.values())
        if model not in models:
            return False
        return models[model].serving is not None if version is None else version in models[model].versions

    def table(self) -> RoutingTable[LoadedVersion]:
        """Return the current routing table."""
        return self._table

    def states(self, model: str) -> dict[str, VersionState]:
        """Return the state of each version of a model that is in memory or being loaded. Raises NotFoundError: the model is unknown."""
        found = {name.version: VersionState.LOADING for name in list(self._loading) if name.model == model}
        if not found or model in self._table.models:
            found |= {version: loaded.state for version, loaded in self._table.routes(model).versions.items()}
        return found

    def metadata(self, model: str, version: str | None = None) -> tuple[ModelSignature, list[str]]:
        """Return the signature of the given or the serving version, and all loaded versions.

        Raises: NotFoundError: the model or version is unknown. UnavailableError: no version serves yet.
        """
        table = self._table
        routes = table.routes(model)
        versions = sorted(routes.versions, key=lambda name: (len(name), name))  # by number
        return table.route(model, version or routes.serving, "").target.signature, versions

    def close(self, drain_s: float = 10.0) -> bool:
        """Wait at most `drain_s` seconds for the answers to accepted requests, and unload all versions.

        Stop the HTTP and gRPC servers first, because requests that arrive meanwhile are accepted and answered too.
        """
        with self._changing:
            self._closed = True
            versions = [version for routes in self._table.models.values() for version in routes.versions.values()]
            self._table = RoutingTable()
            for version in versions:
                version.become(VersionState.RETIRING)
        give_up = time.monotonic() + drain_s
        ended = [version.batcher.join(max(0.0, give_up - time.monotonic())) for version in versions]
        # This task stops last, because a version ends only when each of its requests has an answer or has passed its deadline.
        self._overdue.close()
        self._comparer.close()
        return all(ended)

    def _is_warm(self, name: VersionName) -> bool:
        routes = self._table.models.get(name.model)
        return routes is not None and name.version in routes.versions

    def _retire_old(self, model: str) -> None:
        """Remove versions that no role keeps. The caller holds `_changing`."""
        routes = self._table.routes(model)
        order = {name.version: number for name, number in self._served_order.items() if name.model == model}
        for version in to_retire(routes, order, self._limits.standby):
            name = VersionName(model, version)
            if name not in self._kept and name not in self._reserved:
                self._remove(name)

    def _remove(self, name: VersionName) -> None:
        """Remove a version from the table. The caller holds `_changing`."""
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
                if not self._is_warm(version.name):  # the same version may have been loaded again
                    prometheus.forget_version(version.name.model, version.name.version)
                    prometheus.forget_inputs(version.name, version.signature)
        for version in retiring:
            version.batcher.end_overdue()
        for model, routes in self._table.models.items():
            for version in routes.versions.values():
                version.batcher.end_overdue()
            prometheus.QUEUE_LENGTH.labels(model).set(sum(version.batcher.num_waiting for version in routes.versions.values()))

    def _report(self, error: Exception) -> None:
        self._logger.error("serving_deadlines_failed", exc_info=error)
