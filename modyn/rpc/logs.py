"""Structured logs: one JSON object per line on standard error, with the ids of the run and the trigger."""

from __future__ import annotations

import logging
import sys
from contextlib import AbstractContextManager, suppress
from typing import Any, cast

import structlog
from structlog.typing import EventDict, FilteringBoundLogger

from modyn.log_files import count_dropped


def _never_raising(min_level: int) -> type[Any]:
    """Return a class of loggers that never raise an error. A line that cannot be rendered or written is dropped and counted."""
    base: Any = structlog.make_filtering_bound_logger(min_level)

    def proxy(self: Any, level: str, event: str, /, **values: Any) -> Any:
        try:
            return base._proxy_to_logger(self, level, event, **values)
        except Exception as error:  # noqa: BLE001 - any class: the `repr` of a value may raise, or the disk be full
            count_dropped()
            with suppress(Exception):  # the count is enough
                base._proxy_to_logger(self, "warning", "log_line_dropped", line=str(event), error=type(error).__name__)

    return type("NeverRaisingLogger", (base,), {"_proxy_to_logger": proxy})


if not structlog.is_configured():
    # This configuration is for scripts and notebooks, which configure no logs. Only warnings are written, to standard error.
    structlog.configure(
        processors=[
            *structlog.get_config()["processors"][:-1],
            # The default formatter shows local variables if `rich` is installed. Local variables may contain passwords and tokens.
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr is not None and sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
            ),
        ],
        wrapper_class=_never_raising(logging.WARNING),
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
    )


def configure_logs(service: str, level: str = "info") -> None:
    """Make structlog and standard loggers write JSON lines of at least `level` (libraries: at least warning) to stderr, with the name `service`.

    Call this function once in a process, before the first log line.
    """

    def add_service(_: object, __: str, event: EventDict) -> EventDict:
        # The service is not bound as a context variable, because threads of libraries such as gRPC do not inherit context variables.
        event.setdefault("service", service)
        return event

    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        add_service,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[*shared, structlog.processors.JSONRenderer()],
        wrapper_class=_never_raising(logging.getLevelName(level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(processor=structlog.processors.JSONRenderer(), foreign_pre_chain=shared)
    )
    # Messages of libraries below the level of a warning are meant for the developers of these libraries.
    logging.basicConfig(level=max(logging.WARNING, logging.getLevelName(level.upper())), handlers=[handler], force=True)


def get_logger(name: str) -> FilteringBoundLogger:
    """Return a logger for calls such as `logger.info("event", key=value)`, which never raise."""
    return cast("FilteringBoundLogger", structlog.get_logger(component=name))


def bind(**ids: object) -> AbstractContextManager[None]:
    """Add ids (run_id, trigger_id) to all log lines of this thread inside the block."""
    return cast("AbstractContextManager[None]", structlog.contextvars.bound_contextvars(**ids))
