"""Logging of the processes: JSON lines, or a readable form on a terminal; on stderr."""

import logging
import os
import sys
from typing import TextIO

import structlog

LEVEL_VARIABLE = "SEGUE_LOG_LEVEL"


def configure(process: str, stream: TextIO | None = None) -> None:
    """Set up structlog and the standard library's logging for this process, on ``stream`` or else stderr.

    Every line carries ``process``. The level comes from ``SEGUE_LOG_LEVEL`` (default ``info``).
    """
    level = logging.getLevelNamesMapping().get(os.environ.get(LEVEL_VARIABLE, "info").upper(), logging.INFO)
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    output = stream or sys.stderr
    handler = logging.StreamHandler(output)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared, processors=_last_steps(process, terminal=output.isatty())
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level)
    for chatty in ("httpx", "httpcore", "uvicorn.access", "alembic"):
        logging.getLogger(chatty).setLevel(max(level, logging.WARNING))


def _last_steps(process: str, *, terminal: bool) -> list[structlog.typing.Processor]:
    def name_process(
        _logger: structlog.typing.WrappedLogger, _method: str, event: structlog.typing.EventDict
    ) -> structlog.typing.EventDict:
        event["process"] = process
        return event

    steps: list[structlog.typing.Processor] = [
        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
        name_process,
    ]
    if terminal:
        return [*steps, structlog.dev.ConsoleRenderer(colors="NO_COLOR" not in os.environ)]
    return [*steps, structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
