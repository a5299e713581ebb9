"""inference-perf's log on standard output, whose lines other tools wait for."""

from datetime import datetime

import click

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_NAME = "inferometer.inference_perf"


class Log:
    """Prints lines such as `2026-09-30 14:25:01,250 - inferometer.inference_perf - INFO - Stage 0 - run started`."""

    def __init__(self, level: str = "INFO") -> None:
        self._least = LEVELS.index(level)

    def info(self, text: str, at: datetime | None = None) -> None:
        """Print a line; `at` is when it happened, if that was earlier."""
        self._print("INFO", text, at)

    def warning(self, text: str) -> None:
        self._print("WARNING", text)

    def error(self, text: str, at: datetime | None = None) -> None:
        self._print("ERROR", text, at)

    def _print(self, level: str, text: str, at: datetime | None = None) -> None:
        if LEVELS.index(level) >= self._least:
            at = at or datetime.now()
            click.echo(f"{at:%Y-%m-%d %H:%M:%S},{at.microsecond // 1000:03d} - {_NAME} - {level} - {text}")
