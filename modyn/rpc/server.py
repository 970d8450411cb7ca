"""Server of a service, with health checks, reflection, metrics, logs, translation of errors, and an orderly end on SIGTERM."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from prometheus_client import Gauge, Histogram
from structlog.typing import FilteringBoundLogger

from modyn.atomic_write import write_atomically
from modyn.config.system import SystemConfig
from modyn.config.system_sections.endpoint import Endpoint
from modyn.errors import InvalidArgumentError, ModynError, SecurityError, UnavailableError
from modyn.full_disk import disk_full_error
from modyn.keep_limits import remove_outlived_files
from modyn.log_files import dropped_lines, is_output, protect_output, write_output_to
from modyn.periodic_task import PeriodicTask
from modyn.rpc.access import NEEDED, AccessTokens, Role
from modyn.rpc.lanes import HEALTH_CHECK, Lanes
from modyn.rpc.logs import configure_logs, get_logger
from modyn.rpc.metrics_server import MetricsServer
from modyn.rpc.security import check_exposure, server_credentials
from modyn.rpc.status import ACCEPTED, TOKEN_KEY, abort
from modyn.state_folders import SERVING_FILE, claim_state, hold_lock, keep_private, make_private_folder, prepare_run_dir

CALL_SECONDS = Histogram("modyn_call_seconds", "Seconds that calls took, streams until they ended", ["method", "outcome"])
LOG_LINES_DROPPED = Gauge("modyn_log_lines_dropped", "Lines of the log that could not be written since the service started")
LOG_LINES_DROPPED.set_function(dropped_lines)

_GRACE_S = 1.0
"""Seconds that running calls get when a service stops. Clients that follow a stream open it again and lose nothing."""
_ARRIVAL_S = 75.0
"""Seconds within which the request of a unary call must arrive, as over HTTP."""
_ENDING = (signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True, slots=True)
class ShutdownLimits:
    """Limits of a shutdown, in seconds after SIGTERM. report_s: after this time, the service writes the stacks of its threads to its log at
    intervals. exit_s: after this time, the service exits with code 1.
    """

    report_s: float = 8.0
    exit_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Registration:
    """One servicer. add_to_server: generated function. full_service_name: name in the proto, e.g. `modyn.Storage`."""

    add_to_server: Callable[[Any, grpc.Server], None]
    servicer: Any
    full_service_name: str


@dataclass
class ServiceContext:
    """Name, configuration and logger of a service, and its callbacks."""

    name: str
    config: SystemConfig
    logger: FilteringBoundLogger
    when_healthy: list[Callable[[], None]] = field(default_factory=list)
    """Functions that are called when the service answers calls, for work that can wait, such as warming up worker processes."""
    _callbacks: list[Callable[[], object]] = field(default_factory=list)

    @property
    def directory(self) -> Path:
        """State folder of the service. The folder exists, and only its owner can read it, because its files describe the user's data."""
        path = self.config.service_dir(self.name)
        make_private_folder(path)
        return path

    def on_shutdown(self, callback: Callable[[], object]) -> None:
        """Run `callback` when the service stops; the last callback runs first. After an error, which is logged, the other callbacks still run."""
        self._callbacks.append(callback)

    def remove_outlived(self, pattern: str) -> None:
        """While the service answers, remove files of its folder that have outlived the limits of section `retention`.

        Args: pattern: glob pattern of the files, relative to the folder.
        """
        retention = self.config.retention
        if retention.files:

            def remove() -> None:
                for path in remove_outlived_files(self.directory.glob(pattern), retention.files):
                    self.logger.info("outlived_file_removed", path=str(path))

            def report(error: Exception) -> None:
                self.logger.warning("outlived_files_not_removed", error=str(error))

            task = PeriodicTask("retention", retention.every_s, [remove], report)
            self.when_healthy.append(task.start)
            self.on_shutdown(task.close)

    def shut_down(self) -> None:
        """Run the callbacks of `on_shutdown`, the last one first."""
        for callback in reversed(self._callbacks):
            try:
                callback()
            except Exception:
                self.logger.exception("shutdown_callback_failed")


class RunningServer:
    """A running gRPC server. address: address of the server; the real port replaces port 0."""

    def __init__(
        self, server: grpc.Server, address: str, health_servicer: health.HealthServicer, lanes: Lanes, arrivals: _Arrivals
    ) -> None:
        self._server = server
        self._lanes, self._arrivals = lanes, arrivals
        self._health = health_servicer
        self.address = address

    def stop(self, grace_s: float = _GRACE_S) -> None:
        """Report the service as not serving, refuse new calls, and cancel running calls after `grace_s` seconds."""
        # The order matters: health probes see the end before calls are refused, and the threads end after all calls. The event is set when all calls
        # have ended. The wait has a timeout, because a cancelled call may hang.
        self._health.enter_graceful_shutdown()
        self._server.stop(grace_s).wait(grace_s + 1)
        self._lanes.close()
        self._arrivals.close()


def start_server(
    name: str,
    endpoint: Endpoint,
    registrations: Sequence[Registration],
    *,
    max_threads: int = 64,
    max_followers: int = 256,
    arrival_s: float = _ARRIVAL_S,
) -> RunningServer:
    """Start a gRPC server at `endpoint`.

    Args: name: name of the service in logs, errors and thread names. registrations: servicers of the service. max_threads: largest number of threads
    for calls with one answer, and the same number again for streams that end by themselves. max_followers: largest number of streams at the same time
    that last as long as their client follows them. arrival_s: seconds within which the one request of a call must arrive.
    Raises: SecurityError: the address would be unsafe. UnavailableError: the address is taken.
    """
    check_exposure(name, endpoint)
    options = [
        ("grpc.max_receive_message_length", endpoint.max_message_bytes),
        ("grpc.max_send_message_length", endpoint.max_message_bytes),
        # Otherwise a second server could listen on the same address, and the kernel would divide the calls between both.
        ("grpc.so_reuseport", 0),
        ("grpc.keepalive_permit_without_calls", 1),
        # Clients ping every minute (`Channel`). gRPC's default of five minutes would end an idle stream at the third ping.
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        # The keepalive ends the stream of a follower whose machine has died, and so frees the thread of the stream.
        ("grpc.keepalive_time_ms", 60_000),
        # 0: no limit. By default, gRPC stops pinging a connection after two pings without data.
        ("grpc.http2.max_pings_without_data", 0),
    ]
    lanes = Lanes(name, max_threads, max_followers)
    arrivals = _Arrivals(arrival_s)
    translation = _Translation(get_logger("rpc"), AccessTokens(endpoint.security), lanes, arrivals)
    server = grpc.server(lanes.calls, interceptors=[translation], options=options)
    for registration in registrations:
        registration.add_to_server(registration.servicer, server)
    names = [registration.full_service_name for registration in registrations]
    health_servicer = health.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
    reflection.enable_server_reflection([*names, health.SERVICE_NAME, reflection.SERVICE_NAME], server)
    address = _bind(server, name, endpoint)
    server.start()
    arrivals.start()
    for served in ("", *names):
        health_servicer.set(served, health_pb2.HealthCheckResponse.SERVING)
    return RunningServer(server, address, health_servicer, lanes, arrivals)


def run_service(
    name: str,
    config: SystemConfig,
    build: Callable[[ServiceContext], Sequence[Registration]],
    limits: ShutdownLimits = ShutdownLimits(),
) -> int:
    """Main function of a service's process: serve until SIGTERM or SIGINT. Args: build: makes the servicers of the service.

    Returns: exit code; 1: the service could not start, or its shutdown took longer than `limits.exit_s` seconds.
    """
    settings = config.service(name)
    keep_private()
    protect_output()
    if is_output(log := config.log_file(name)):  # false in a container or at a terminal
        write_output_to(log, config.logs.limits)
    configure_logs(name, settings.log_level)
    logger = get_logger(name)
    context = ServiceContext(name, config, logger)
    stop = _end_requested(limits)
    try:
        check_exposure(name, config.endpoint(name))
        claim_state(config.service_dir(name))
        folder = context.directory
        lock = hold_lock(folder / "lock", f"another {name} service works on {folder} already; `modyn down` stops it")
        prepare_run_dir(config.run_dir)
        limits_of = {"max_threads": settings.max_threads, "max_followers": settings.max_followers}
        servicers = build(context)
        _serve_metrics(context)  # metrics start first, so that a healthy service has metrics
        server = start_server(name, config.endpoint(name), servicers, **limits_of)
    except (ModynError, OSError) as error:
        _report_no_start(context, error)
        context.shut_down()
        return 1
    logger.info("serving", address=server.address)
    # The stack waits for this file. It is written last, because a start can fail until the server listens.
    write_atomically(context.directory / SERVING_FILE, [f"{server.address}\n".encode()])
    for callback in context.when_healthy:
        callback()
    stop.wait()  # the thread that reads signals sets this event
    logger.info("stopping")
    # The order matters: calls use objects that the callbacks close, and the release of the lock lets the next process use the folder.
    server.stop()
    context.shut_down()
    logger.info("stopped")
    lock.close()
    sys.stderr.flush()
    sys.stdout.flush()
    # A normal exit would join the threads of cancelled calls, and these threads may wait forever.
    os._exit(0)


def _report_no_start(context: ServiceContext, error: ModynError | OSError) -> None:
    if isinstance(error, ModynError):
        message = error.message
        context.logger.error("cannot_start", error=message, reason=error.reason)
    else:
        message = f"{error.filename or context.config.state_dir}: {error.strerror}; make it writable or change state_dir"
        context.logger.exception("cannot_start", error=message)
    sys.stderr.write(f"modyn {context.name}: {message}\n")


def _end_requested(limits: ShutdownLimits) -> threading.Event:
    """Return an event that SIGTERM or SIGINT sets.

    Python runs signal handlers in the main thread only. Signal handlers would not run while the main thread waits for a lock, and could deadlock
    on a lock that the main thread holds. Therefore the signal is sent through a pipe to a thread that only reads the pipe.
    """
    asked = threading.Event()
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in _ENDING:
        signal.signal(number, lambda *_: None)

    def wait() -> None:
        while os.read(reader, 1)[0] not in _ENDING:  # each signal that has a handler ends this read
            continue
        asked.set()
        with suppress(RuntimeError):  # there is no standard error
            faulthandler.dump_traceback_later(limits.report_s, repeat=True)
        time.sleep(limits.exit_s)
        os._exit(1)

    threading.Thread(target=wait, name="signals", daemon=True).start()
    return asked


def _bind(server: grpc.Server, name: str, endpoint: Endpoint) -> str:
    credentials, address = server_credentials(endpoint), endpoint.address
    try:
        port = server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address)
    except RuntimeError:
        port = 0
    if port == 0:
        raise UnavailableError(
            f"{name} cannot listen on {address}: the address is taken or not one of this machine; "
            f"stop what uses it or set {name}.address in the system file"
        )
    return address if endpoint.is_unix else f"{address.rsplit(':', 1)[0]}:{port}"


def _serve_metrics(context: ServiceContext) -> None:
    """Serve Prometheus metrics, by default on a free port of loopback, and write the address to `metrics_url`."""
    settings = context.config.service(context.name)
    endpoint = Endpoint(address=f"{settings.metrics_host}:{settings.metrics_port}", security=context.config.security)
    metrics = MetricsServer(context.name, endpoint)
    write_atomically(context.directory / "metrics_url", [f"{metrics.url}\n".encode()])
    context.on_shutdown(metrics.stop)


class _Arrivals:
    """Receives the requests of unary calls, and cancels calls whose request does not arrive in time. Each such call would occupy a thread forever."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._since = dict[grpc.ServicerContext, float]()
        """Calls whose request is arriving, and the monotonic time of their beginning. Threads only add and remove their own call."""
        task = PeriodicTask("arrivals", limit_s / 10, [self._cancel_late], lambda _: None, limit_s)
        self.start, self.close = task.start, task.close

    def receive(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Any:
        """Return the request of a call. Errors of gRPC: the client has disconnected, or the call was cancelled."""
        self._since[context] = time.monotonic()
        try:
            request = next(requests, None)
        finally:
            del self._since[context]
        if request is None:
            abort(context, InvalidArgumentError("the call ended without a request; send one"))
        return request

    def _cancel_late(self) -> None:
        now = time.monotonic()
        for context, since in list(self._since.items()):
            if now - since > self._limit_s:
                context.cancel()


class _Translation(grpc.ServerInterceptor):
    """Chooses the threads of each call, checks the role of its token, measures its time, and converts its error to a status."""

    def __init__(self, logger: FilteringBoundLogger, tokens: AccessTokens, lanes: Lanes, arrivals: _Arrivals) -> None:
        self._logger = logger
        self._tokens = tokens
        self._lanes, self._arrivals = lanes, arrivals

    def intercept_service(self, continuation: Any, details: Any) -> Any:
        handler = continuation(details)
        if handler is None:
            return None
        try:
            self._check(details)
        except SecurityError as error:
            return self._refuse(handler, details, error)
        streaming = (handler.request_streaming, handler.response_streaming)
        kind = "_".join("stream" if is_stream else "unary" for is_stream in streaming)
        behaviour = getattr(handler, kind)
        call = partial(self._call, details=details)

        def received(requests: Iterator[Any], context: grpc.ServicerContext) -> Any:
            return requests if handler.request_streaming else self._arrivals.receive(requests, context)

        def single(requests: Iterator[Any], context: grpc.ServicerContext) -> Any:
            request = received(requests, context)
            with call(context):
                return behaviour(request, context)

        def stream(requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
            request = received(requests, context)
            with call(context):
                context.send_initial_metadata((ACCEPTED,))
                yield from behaviour(request, context)

        served: Any = stream if handler.response_streaming else single
        served.experimental_thread_pool = self._lanes.of(details.method, streams=handler.response_streaming)
        # To gRPC, each call has a stream of requests. Otherwise gRPC itself would wait for the request of a unary call, without a limit.
        make = grpc.stream_stream_rpc_method_handler if handler.response_streaming else grpc.stream_unary_rpc_method_handler
        return make(
            served,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    def _refuse(self, handler: Any, details: Any, error: SecurityError) -> Any:
        """Return a handler that ends the call before its request is read. gRPC itself would read up to `max_message_bytes` for a handler of one
        request, and wait without end for a request that never ends.
        """

        def refuse(_requests: Iterator[Any], context: grpc.ServicerContext) -> None:
            abort(context, error)

        served: Any = refuse
        served.experimental_thread_pool = self._lanes.of(details.method, streams=handler.response_streaming)
        return grpc.stream_unary_rpc_method_handler(served)

    def _check(self, details: Any) -> None:
        # A health check needs no token, because it reveals nothing and orchestrators cannot send a token. Health/Watch needs a token, because it
        # occupies a thread.
        if details.method != HEALTH_CHECK:
            presented = dict(details.invocation_metadata).get(TOKEN_KEY)
            self._tokens.check(presented, NEEDED.get(details.method, Role.ADMIN), details.method.rsplit("/", 1)[-1])

    @contextmanager
    def _call(self, context: grpc.ServicerContext, details: Any) -> Iterator[None]:
        """Context of one call. An error inside the context ends the call with the status of the error."""
        method = details.method.rsplit("/", 1)[-1]
        started, outcome = time.perf_counter(), "ok"
        try:
            with self._lanes.admitted(details.method):
                yield
        except BaseException as error:
            outcome = getattr(error, "reason", "INTERNAL")
            if isinstance(error, ModynError) and context.is_active():
                abort(context, error)
            # GeneratorExit means that the client has disconnected. An Exception without text is gRPC's own abort.
            expected = isinstance(error, GeneratorExit) or (type(error) is Exception and not error.args)
            if expected or not context.is_active():
                raise
            self._logger.error("call_failed", method=method, exc_info=error)
            message = f"{method} failed: {type(error).__name__}: {error}; the log of the service has the details"
            abort(context, disk_full_error(error) or ModynError(message))
        finally:
            CALL_SECONDS.labels(method, outcome).observe(time.perf_counter() - started)
