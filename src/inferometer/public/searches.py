"""`inferometer.capacity` and `Capacity`: the highest load at which a server holds its objectives."""

from os import PathLike
from pathlib import Path
from typing import Any

import msgspec

from inferometer.capacity_search.result import Capacity as Found
from inferometer.capacity_search.result import Probe
from inferometer.capacity_search.trials import Basis
from inferometer.errors import UserError, named
from inferometer.public.pages import in_frame, written
from inferometer.public.settings import Overrides, Source, config_of, keywords_of, value_of
from inferometer.records import Manifest

_SEARCH = ("by", "budget", "percentile", "think", "start", "precision", "at_least")


@keywords_of("capacity", *_SEARCH, "strict")
def capacity(
    config: Source, overrides: Overrides | None = None, /, *, progress: bool = False, **settings: Any
) -> "Capacity":
    """Find the highest load at which the server holds its objectives, as the command `inferometer capacity` does.

    `config` and `overrides` are those of `inferometer.run`; keywords are options, sections or keys, as there. The search sets `load`
    itself. Durations are seconds, or text such as "2m". `at_least` and `strict` decide `Capacity.passed`. Raises Error when the config is
    not right or the server cannot be reached.
    """
    from inferometer.conduct.capacity import Options, find, with_objectives  # noqa: PLC0415
    from inferometer.conduct.uploading import finish  # noqa: PLC0415
    from inferometer.report import capacity_export, capacity_view  # noqa: PLC0415

    strict = bool(settings.pop("strict", False))
    given = {name: settings.pop(name) for name in _SEARCH if name in settings}
    search = Options(**{name: value_of("capacity", name, value) for name, value in given.items() if value is not None})
    if any(key.partition(".")[0] == "load" for key in (*(overrides or {}), *settings)):
        raise UserError("load: the search sets the load itself", "leave it out; see by=, start= and budget=")
    made, source = config_of(config, overrides, settings, command="capacity")
    with named({"slo": "slo="}, source):
        found, manifest = find(with_objectives(made), search, capacity_view.SearchView(search.by, quiet=not progress))
    found = msgspec.structs.replace(found, strict=strict)
    capacity_export.save(capacity_export.CapacityReport(found, manifest))
    finish(Path(found.folder))
    return Capacity(found, manifest)


class Capacity(msgspec.Struct, frozen=True, eq=False, weakref=True):
    """The capacity of a server: an interval, and the probes that show it. In a notebook, it shows itself as the HTML report."""

    result: Found
    """Everything that the search found."""
    _manifest: Manifest | None = None

    @property
    def value(self) -> float | None:
        """The highest level that holds: requests per second, requests in flight or users. None: no level does."""
        return self.result.bracket.low

    @property
    def interval(self) -> tuple[float | None, float | None]:
        """The highest level that holds, and the lowest above it that fails; None if nothing is known."""
        return self.result.bracket.low, self.result.bracket.high

    @property
    def basis(self) -> tuple[Basis, Basis]:
        """What the two ends of the interval are: shown with 95 % confidence, likely, or estimated, if no probe showed them."""
        return self.result.bracket.low_basis, self.result.bracket.high_basis

    @property
    def by(self) -> str:
        """What was raised: rate, concurrency or users."""
        return self.result.by

    @property
    def limited_by(self) -> str | None:
        """The objective that fails first above the interval."""
        return self.result.limited_by

    @property
    def probes(self) -> tuple[Probe, ...]:
        """The short runs, in order: level, status, latencies, and the folder of each."""
        return self.result.probes

    @property
    def passed(self) -> bool:
        """Whether `at_least`, or any level if that was not given, holds: shown or likely, and only shown if `strict`."""
        return self.result.outcome == "met"

    @property
    def folder(self) -> Path:
        """Where the probes are stored."""
        return Path(self.result.folder)

    def report(self, *, color: bool = False) -> str:
        """The answer and the probes as text, as the command prints them."""
        from inferometer.report import capacity_report  # noqa: PLC0415

        return capacity_report.render(self.result, color=color)

    def html(self, path: str | PathLike[str] | None = None) -> str:
        """The answer as one HTML page with charts. With a path, it is also written there."""
        from inferometer.report.html import capacity_page  # noqa: PLC0415

        return written(capacity_page.encode(self.result, self._manifest).decode(), path)

    def _repr_html_(self) -> str:
        return in_frame(self.html(), f"inferometer: capacity of {self.result.url}")

    def __repr__(self) -> str:
        from inferometer.report import capacity  # noqa: PLC0415

        return f"<inferometer.Capacity {capacity.words(self.result)}>"
