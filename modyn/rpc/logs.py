"""Structured logs: one JSON object a line on standard error, with the ids of run and trigger that the work belongs to."""

from __future__ import annotations

import logging
import sys
from contextlib import AbstractContextManager, suppress
from typing import Any, cast

import structlog
from structlog.typing import EventDict, FilteringBoundLogger

from modyn.log_files import count_dropped


def _never_raising(min_level: int) -> type[Any]:
    """The class of loggers: a line that cannot be rendered or written is counted, and nothing is raised into the program."""
    base: Any = structlog.make_filtering_bound_logger(min_level)

    def proxy(self: Any, level: str, event: str, /, **values: Any) -> Any:
        try:
            return base._proxy_to_logger(self, level, event, **values)
        except Exception as error:  # noqa: BLE001 - of any class: a value's own `repr`, a full disk
            count_dropped()
            with suppress(Exception):  # then the count is all that can be kept
                base._proxy_to_logger(self, "warning", "log_line_dropped", line=str(event), error=type(error).__name__)

    return type("NeverRaisingLogger", (base,), {"_proxy_to_logger": proxy})


if not structlog.is_configured():
    # Scripts and notebooks configure nothing: their standard output is their own, and what goes well is not worth a line in it.
    structlog.configure(
        processors=[
            *structlog.get_config()["processors"][:-1],
            # The default one shows local variables where `rich` is installed: URLs with passwords, and tokens.
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr is not None and sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
            ),
        ],
        wrapper_class=_never_raising(logging.WARNING),
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
    )


def configure_logs(service: str, level: str = "info") -> None:
    """Make structlog and standard loggers write JSON lines to stderr, with the name `service`, from `level` on (libraries: from warning).

    Call it once in a process, before it logs.
    """

    def add_service(_: object, __: str, event: EventDict) -> EventDict:
        # Not bound as a context variable: threads that libraries start, such as those of gRPC, do not inherit these.
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
    # Messages of libraries below a warning are for their own developers.
    logging.basicConfig(level=max(logging.WARNING, logging.getLevelName(level.upper())), handlers=[handler], force=True)


def get_logger(name: str) -> FilteringBoundLogger:
    """A logger; `logger.info("event", key=value)`. No call raises."""
    return cast("FilteringBoundLogger", structlog.get_logger(component=name))


def bind(**ids: object) -> AbstractContextManager[None]:
    """Adds ids (run_id, trigger_id) to all that this thread logs inside the block."""
    return cast("AbstractContextManager[None]", structlog.contextvars.bound_contextvars(**ids))
