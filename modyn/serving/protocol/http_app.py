"""Open Inference Protocol over HTTP, as an ASGI application without a framework (decision 059).

GET  /v2, /v2/health/live, /v2/health/ready
GET  /v2/models/NAME[/versions/VERSION], the same path with /ready
POST /v2/models/NAME[/versions/VERSION]/infer
POST /observations
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sized
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Any, Final, TypeVar

import orjson

from modyn.errors import (
    AlreadyExistsError,
    CancelledError,
    ConflictError,
    DeadlineError,
    InvalidArgumentError,
    ModynError,
    NotFoundError,
    SecurityError,
    UnavailableError,
)
from modyn.rpc.access import AccessTokens, Role
from modyn.rpc.http_guard import HttpGuard
from modyn.rpc.logs import get_logger
from modyn.serving.messages.infer import InferAnswer, InferRequest
from modyn.serving.messages.json_parts import PART_BYTES, PART_VALUES
from modyn.serving.messages.json_tensors import encode_answer, metadata, parse_request, server_metadata
from modyn.serving.model_server import InferTicket, ModelServer
from modyn.serving.observations.router import ObservationRouter
from modyn.serving.prometheus import count_error
from modyn.serving.protocol.http_limits import HttpError, HttpLimits, Receive, RequestBodies

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = tuple[tuple[bytes, bytes], ...]
T = TypeVar("T")

STATUSES: Final[tuple[tuple[type[ModynError], int], ...]] = (
    (InvalidArgumentError, 400),
    (SecurityError, 403),
    (NotFoundError, 404),
    (ConflictError, 409),
    (AlreadyExistsError, 409),
    (CancelledError, 499),
    (DeadlineError, 504),
    (UnavailableError, 503),
)
"""HTTP status of each class of errors. The first class that fits is used. All other errors have the status 500."""
HEADER_LENGTH: Final = b"inference-header-content-length"
RETRY_AFTER_S: Final = 1
"""Seconds after which a client may repeat a request that was refused for now (header `Retry-After`)."""
_JSON_TYPE: Final = b"application/json"
_INFER_TYPES: Final = (_JSON_TYPE, b"application/octet-stream", None)
"""Content types that a request for predictions may have. None is included because `tritonclient` sends no type. A request of a browser without a type
is recognised by the header `Origin`.
"""
_JSON: Final = ((b"content-type", _JSON_TYPE),)
_MAX_LENGTH_DIGITS: Final = 18
_WATCH_AFTER_S: Final = 0.05
"""Seconds after which the server begins to watch whether the client of a waiting request has disconnected. Most requests are answered earlier."""


def status_of(error: ModynError) -> int:
    """Return the HTTP status of an error."""
    return next((status for kind, status in STATUSES if isinstance(error, kind)), 500)


class _Reply:
    """Result of a prediction, for a task of the event loop. Only the loop's thread uses this object."""

    __slots__ = ("answer", "came")

    def __init__(self) -> None:
        self.answer: InferAnswer | ModynError | None = None
        self.came: asyncio.Future[None] | None = None  # wakes the waiting task; None: no task waits

    def give(self, answer: InferAnswer | ModynError) -> None:
        """Set the answer and wake the task. Called once."""
        self.answer = answer
        if self.came is not None and not self.came.done():
            self.came.set_result(None)


class HttpApp:
    """ASGI application that passes HTTP requests to a model server.

    Args: guard: checks headers. tokens: accepted tokens; None: requests need no token. observations: takes labels; None: /observations is not served.
    """

    open_requests: Sized = ()
    """Requests that the HTTP server has read and not answered. If there is only one such request, a quick model predicts it immediately."""

    def __init__(
        self,
        server: ModelServer,
        guard: HttpGuard,
        tokens: AccessTokens | None,
        observations: ObservationRouter | None,
        limits: HttpLimits,
    ) -> None:
        self._server, self._guard, self._tokens, self._observations = server, guard, tokens, observations
        self.limits, self.bodies = limits, RequestBodies(limits)
        self._logger = get_logger("serving.http")
        # The pool has one thread, so that memory contains one large decoded request, and the event loop keeps at least half of the interpreter's
        # time.
        self._large = ThreadPoolExecutor(1, "http-large")
        self._answers: deque[tuple[_Reply, InferAnswer | ModynError]] = deque()
        self._woken = False
        # Protects the two fields above: answers that predicting threads hand to the loop, and whether the loop was woken to take the answers.
        self._handing_over = threading.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request. An ASGI 3 server calls this method."""
        if scope["type"] != "http":
            raise InvalidArgumentError(f"this application answers HTTP, not {scope['type']}")
        status = 200
        try:
            body, headers = await self._route(scope, receive)
        except asyncio.CancelledError:  # Uvicorn stops, and has waited for its grace period
            status, body, headers = self._error_answer(scope, UnavailableError("the server ends; send the request again"))
        except Exception as error:  # noqa: BLE001 - for each class of errors the client gets an answer
            status, body, headers = self._error_answer(scope, error)
        await send(
            {"type": "http.response.start", "status": status, "headers": [(b"content-length", b"%d" % len(body)), *headers]}
        )
        await send({"type": "http.response.body", "body": body})

    def _error_answer(self, scope: Scope, error: Exception) -> tuple[int, bytes, Headers]:
        """Return the status, body and headers of the answer to a failed request."""
        if isinstance(error, HttpError):
            return error.status, orjson.dumps({"error": error.message}), (*_JSON, *error.headers)
        if isinstance(error, ModynError):
            status = status_of(error)
            retry = ((b"retry-after", b"%d" % RETRY_AFTER_S),) if status == 503 else ()
            return status, orjson.dumps({"error": error.message}), (*_JSON, *retry)
        self._logger.error("request_failed", path=scope["path"], exc_info=error)
        message = f"{type(error).__name__} in the server; its log has the details"
        return 500, orjson.dumps({"error": message}), _JSON

    async def _route(self, scope: Scope, receive: Receive) -> tuple[bytes, Headers]:
        headers = self._guard.check(scope["headers"])
        parts = scope["path"].strip("/").split("/")
        match parts:
            case ["v2", "models", model, "infer"]:
                return await self._infer(scope, headers, receive, model, None)
            case ["v2", "models", model, "versions", version, "infer"]:
                return await self._infer(scope, headers, receive, model, version)
            case ["v2", "health", "live"]:
                _method(scope, "GET")
                return b'{"live":true}', _JSON
            case ["v2", "health", "ready"]:
                _method(scope, "GET")
                why = "a model has no version that serves yet (see /v2/models/NAME/ready), or the server ends"
                return _ready(self._server.is_ready(), why), _JSON
            case ["v2", "models", model, "ready"]:
                return self._model_ready(scope, headers, model, None), _JSON
            case ["v2", "models", model, "versions", version, "ready"]:
                return self._model_ready(scope, headers, model, version), _JSON
            case ["v2", "models", model]:
                return self._metadata(scope, headers, model, None), _JSON
            case ["v2", "models", model, "versions", version]:
                return self._metadata(scope, headers, model, version), _JSON
            case ["v2"]:
                self._allow(scope, headers, Role.READER)
                _method(scope, "GET")
                return orjson.dumps(server_metadata()), _JSON
            case ["observations"]:
                return await self._observe(scope, headers, receive), _JSON
        raise HttpError(404, f"there is no {scope['path']}; see /v2/models/NAME, /v2/models/NAME/infer, /v2/health/ready")

    def _metadata(self, scope: Scope, headers: Mapping[bytes, bytes], model: str, version: str | None) -> bytes:
        self._allow(scope, headers, Role.READER)
        _method(scope, "GET")
        signature, versions = self._server.metadata(model, version)
        return orjson.dumps(metadata(model, versions, signature))

    def _model_ready(self, scope: Scope, headers: Mapping[bytes, bytes], model: str, version: str | None) -> bytes:
        self._allow(scope, headers, Role.READER)
        _method(scope, "GET")
        self._server.table().routes(model)  # raises NotFoundError
        why = f"version {version} is not loaded" if version else "no version serves yet"
        return _ready(self._server.is_ready(model, version), why, {"name": model})

    async def _infer(
        self, scope: Scope, headers: Mapping[bytes, bytes], receive: Receive, model: str, version: str | None
    ) -> tuple[bytes, Headers]:
        self._allow(scope, headers, Role.READER)
        _method(scope, "POST")
        try:
            self._check_type(headers, _INFER_TYPES)
            self._server.table().routes(model)  # raises NotFoundError: before the body is read
            body, length = await self.bodies.read(headers, receive), _header_length(headers)
            if is_small := len(body) <= PART_BYTES:
                wanted = parse_request(model, version, body, length)
            else:
                wanted = await self._aside(len(body), parse_request, model, version, body, length)
        except (HttpError, ModynError) as error:
            count_error(self._server.table().models, model, error.reason)
            raise
        reply = _Reply()
        if is_small:
            ticket = self._begin(wanted.request, reply)
        else:
            ticket = await self._aside(0, self._server.infer, wanted.request, self._done(reply))
        if reply.answer is None:
            await self._wait(reply, ticket, receive)
        answer = reply.answer
        assert answer is not None
        if isinstance(answer, ModynError):
            raise answer
        num_values = 0
        for values in answer.outputs.values():
            num_values += values.size
        if num_values <= PART_VALUES:
            encoded, head = encode_answer(answer, wanted)
        else:
            encoded, head = await self._aside(0, encode_answer, answer, wanted)
        if head is None:
            return encoded, _JSON
        return encoded, ((b"content-type", b"application/octet-stream"), (HEADER_LENGTH, b"%d" % head))

    def _begin(self, request: InferRequest, reply: _Reply) -> InferTicket:
        """Start a prediction. Requests that arrive at the same time wait until the event loop has read all of them, and form one batch."""
        done = self._done(reply)
        if len(self.open_requests) == 1:
            return self._server.infer(request, done, at_once=True)
        return self._server.infer(request, done, asyncio.get_running_loop().call_soon)

    def _done(self, reply: _Reply) -> Callable[[InferAnswer | ModynError], None]:
        """Return the callback that takes an answer. Any thread may call the callback."""
        return functools.partial(self._post, asyncio.get_running_loop(), threading.get_ident(), reply)

    async def _aside(self, size: int, function: Callable[..., T], *args: Any) -> T:
        """Call a function in the thread for large requests, while the event loop answers small requests.

        Args: size: number of bytes of this request, counted until the function returns. Raises: OverloadedError: too many bytes wait. Other errors
        come from the function.
        """
        self.bodies.hold(size)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._large, function, *args)
        finally:
            self.bodies.release(size)

    async def _wait(self, reply: _Reply, ticket: InferTicket, receive: Receive) -> None:
        """Wait for an answer, or until the client has disconnected. `_Reply.give` wakes the task."""
        loop = asyncio.get_running_loop()
        reply.came = loop.create_future()
        watcher: list[asyncio.Task[None]] = []

        async def cancel_when_gone() -> None:
            if (await receive())["type"] == "http.disconnect":
                ticket.cancel()

        timer = loop.call_later(_WATCH_AFTER_S, lambda: watcher.append(loop.create_task(cancel_when_gone())))
        try:
            await reply.came
        except asyncio.CancelledError:
            ticket.cancel()
            raise
        finally:
            timer.cancel()
            for task in watcher:
                task.cancel()

    def _post(self, loop: asyncio.AbstractEventLoop, loop_thread: int, reply: _Reply, answer: InferAnswer | ModynError) -> None:
        """Pass an answer to the event loop. The predicting thread calls this method, and may be the loop's own thread."""
        if threading.get_ident() == loop_thread:
            return reply.give(answer)
        with self._handing_over:
            self._answers.append((reply, answer))
            wake, self._woken = not self._woken, True
        if wake:  # the loop is woken once for all answers that arrive before it takes them
            try:
                loop.call_soon_threadsafe(self._take_answers)
            except RuntimeError as error:
                self._logger.info("answer_without_client", error=str(error))  # the loop has ended, and all connections with it
        return None

    def _take_answers(self) -> None:
        with self._handing_over:
            answers, self._answers, self._woken = self._answers, deque(), False
        for reply, answer in answers:
            reply.give(answer)

    async def _observe(self, scope: Scope, headers: Mapping[bytes, bytes], receive: Receive) -> bytes:
        self._allow(scope, headers, Role.WRITER)
        if self._observations is None:
            raise HttpError(404, "this server keeps no observations; set serving.observations in the pipeline")
        _method(scope, "POST")
        self._check_type(headers, (_JSON_TYPE,))
        body = await self.bodies.read(headers, receive)
        self.bodies.hold(len(body))
        # The call runs in another thread, because it writes to disk. The call may take longer than the client waits.
        posted = asyncio.get_running_loop().run_in_executor(None, self._observations.post, body, self._server.check_inputs)
        posted.add_done_callback(functools.partial(self._end_post, len(body)))
        try:
            # The thread cannot be ended. With `shield`, the call continues after the timeout, and its bytes are counted until `_end_post`.
            return orjson.dumps(await asyncio.wait_for(asyncio.shield(posted), self.limits.timeout_s))
        except TimeoutError as error:
            why = "the labels may have been taken: send them again, each counts once"
            raise DeadlineError(
                f"the dataset of observations did not answer within {self.limits.timeout_s:g} s; {why}"
            ) from error

    def _end_post(self, size: int, posted: asyncio.Future[dict[str, int]]) -> None:
        self.bodies.release(size)
        if not posted.cancelled():
            posted.exception()  # marks the error as read, because asyncio would log an unread error even after the client has disconnected

    def _check_type(self, headers: Mapping[bytes, bytes], allowed: tuple[bytes | None, ...]) -> None:
        """Raise HttpError for content types that a browser sends to other sites without a preflight request: text and forms.

        Args: allowed: allowed content types; None among them: the header may be missing."""
        given = headers.get(b"content-type")
        if given in allowed or not self._guard.is_open:
            return
        if given is None or given.partition(b";")[0].strip().lower() not in allowed:
            shown = "missing" if given is None else repr(given[:100].decode("latin-1"))
            raise HttpError(415, f"Content-Type is {shown}; send application/json (curl: --json in place of -d)")

    def _allow(self, scope: Scope, headers: Mapping[bytes, bytes], role: Role) -> None:
        """Check the token of a request. Raises HttpError: 401: the request has no valid token; 403: the token's role is too low."""
        if self._tokens is not None and self._tokens.required:
            presented = headers.get(b"authorization")
            if self._tokens.role(presented) is None:
                raise HttpError(401, "send a token as Authorization: Bearer TOKEN", (b"www-authenticate", b"Bearer"))
            self._tokens.check(presented, role, scope["path"])


def _method(scope: Scope, allowed: str) -> None:
    """Raise HttpError unless the method is allowed. If GET is allowed, HEAD is allowed too, and Uvicorn leaves out the body."""
    if scope["method"] != allowed and (scope["method"], allowed) != ("HEAD", "GET"):
        message = f"{scope['method']} {scope['path']} is not possible; use {allowed}"
        raise HttpError(405, message, (b"allow", allowed.encode()))


def _ready(ready: bool, why: str, of: Mapping[str, str] = MappingProxyType({})) -> bytes:
    if not ready:
        raise HttpError(503, why, (b"retry-after", b"%d" % RETRY_AFTER_S))
    return orjson.dumps({**of, "ready": True})


def _header_length(headers: Mapping[bytes, bytes]) -> int | None:
    given = headers.get(HEADER_LENGTH)
    if given is None:
        return None
    if not given.isdigit() or len(given) > _MAX_LENGTH_DIGITS:
        raise InvalidArgumentError(
            f"Inference-Header-Content-Length is {given[:80].decode('latin-1')!r}; write a number of bytes"
        )
    return int(given)
