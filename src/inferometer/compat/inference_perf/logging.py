"""inference-perf's log on standard output, whose lines other tools wait for."""

import logging
from datetime import datetime

import click

from inferometer.printable import printable

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_NAME = "inferometer.inference_perf"


class Log:
    """Prints lines such as `2026-09-30 14:25:01,250 - inferometer.inference_perf - INFO - Stage 0 - run started`."""

    def __init__(self, level: str = "INFO") -> None:
        """Also print what the modules of this folder log in Python's own way."""
        self._least = LEVELS.index(level)
        logger = logging.getLogger(__package__)
        logger.handlers, logger.propagate = [_Handler(self)], False
        logger.setLevel(level)

    def info(self, text: str, at: datetime | None = None) -> None:
        """Print a line; `at` is when it happened, if that was earlier."""
        self.print("INFO", text, at)

    def warning(self, text: str) -> None:
        self.print("WARNING", text)

    def error(self, text: str, at: datetime | None = None) -> None:
        self.print("ERROR", text, at)

    def print(self, level: str, text: str, at: datetime | None = None) -> None:
        if LEVELS.index(level) >= self._least:
            at = at or datetime.now()
            click.echo(f"{at:%Y-%m-%d %H:%M:%S},{at.microsecond // 1000:03d} - {_NAME} - {level} - {printable(text)}")


class _Handler(logging.Handler):
    """Prints records of Python's logging as lines of the log."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        self._log.print(record.levelname, record.getMessage(), datetime.fromtimestamp(record.created))
