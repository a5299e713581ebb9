"""A pytest plugin: measure a server in a test, and gate the test on objectives.

    @pytest.mark.slo("ttft.p99 < 500ms", "failure_rate < 1%")
    def test_the_server_is_fast_enough(inferometer_run):
        inferometer_run("http://127.0.0.1:8000", {"load.rate": 20, "load.duration": "1m"})

pytest loads this file whenever it starts (entry point pytest11), so it imports nothing else of the package before a test needs it.
docs/how-to/pytest.md describes it.
"""

from collections.abc import Generator, Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    from inferometer.public.runs import Run

PROPERTY = "inferometer"
"""The user property of a test's report with its run, which also reaches junit.xml and, with xdist, the main process."""

_RUNS: "pytest.StashKey[list[Run]]" = pytest.StashKey()


class Measure(Protocol):
    """The type of the fixture `inferometer_run`: called like `inferometer.run`."""

    def __call__(
        self,
        config: str | PathLike[str] | Mapping[str, Any],
        overrides: Mapping[str, Any] | None = None,
        /,
        *,
        progress: bool = False,
        **settings: Any,
    ) -> "Run": ...


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("inferometer", "objectives of model servers")
    group.addoption(
        "--slo-strict",
        action="store_true",
        help="Fail tests also if an objective is undecided, even if the measured value is within the limit, or met by margin only.",
    )
    group.addoption("--inferometer-output", metavar="DIR", help="Where the runs of tests are stored. Default: runs.")
    parser.addini("slo_strict", "The same as --slo-strict.", type="bool", default=False)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "slo(*objectives, strict=None): fail the test unless its runs are VALID and meet the objectives, such as "
        "'ttft.p99 < 500ms'; without objectives, those of the run's own config.",
    )


@pytest.fixture
def inferometer_run(request: pytest.FixtureRequest) -> Measure:
    """Measure a server: called like `inferometer.run`, as often as the test needs. The marker `slo` judges every run of the test.

    The objectives of the marker are added to those of the config, so that the stored report has them, too.
    """
    item: pytest.Item = request.node
    wanted = _objectives(item)
    output = request.config.getoption("--inferometer-output")

    def measure(
        config: str | PathLike[str] | Mapping[str, Any],
        overrides: Mapping[str, Any] | None = None,
        /,
        *,
        progress: bool = False,
        **settings: Any,
    ) -> "Run":
        import inferometer  # noqa: PLC0415
        from inferometer.public.settings import config_of  # noqa: PLC0415

        made, _ = config_of(config, overrides, settings)
        settings["slo"] = list(dict.fromkeys([*made.slos, *wanted]))
        if output is not None:
            settings["output"] = output
        run = inferometer.run(config, overrides, progress=progress, **settings)
        item.stash.setdefault(_RUNS, []).append(run)
        return run

    return measure


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """After the test itself, judge its runs by the marker `slo`."""
    outcome = yield
    runs = _runs_of(item)
    try:
        if item.get_closest_marker("slo") is not None:
            _gate(item, runs)
    finally:
        for run in runs:
            item.user_properties.append((PROPERTY, _described(run)))
    return outcome


def _runs_of(item: pytest.Item) -> "list[Run]":
    """The runs that the test made, and those that fixtures gave it."""
    made = item.stash.get(_RUNS, [])
    given = [value for value in getattr(item, "funcargs", {}).values() if _is_run(value)]
    return [*made, *(run for run in given if all(run is not one for one in made))]


def _is_run(value: object) -> bool:
    """Whether it is a Run, without importing that."""
    return (type(value).__module__, type(value).__name__) == ("inferometer.public.runs", "Run")


def _gate(item: pytest.Item, runs: "list[Run]") -> None:
    """Fail the test unless all runs are VALID and meet the objectives."""
    if not runs:
        pytest.fail("the test is marked with slo, but it has no run: use the fixture inferometer_run", pytrace=False)
    from inferometer.analysis.gate import obstacles  # noqa: PLC0415
    from inferometer.analysis.slo_result import is_passed  # noqa: PLC0415

    objectives = _objectives(item)
    strict = _is_strict(item)
    problems = []
    for run in runs:
        judged = _judged(run, objectives)
        found = [f"{check.name}: {check.message}" for check in obstacles(judged.summary)]
        problems += [f"INVALID: {each} ({run.folder})" for each in found]
        problems += [
            f"{one.slo}: {one.status}: {one.reason} ({run.folder})"
            for one in judged.slo
            if not is_passed([one], strict)
        ]
        if not judged.slo:
            problems.append(f"there is no objective: give one to the marker slo, or to the config ({run.folder})")
    if problems:
        pytest.fail("\n".join(problems), pytrace=False)


def _judged(run: "Run", objectives: list[str]) -> "Run":
    from inferometer.errors import UserError  # noqa: PLC0415

    try:
        return run.judge(*objectives) if objectives else run
    except UserError as error:
        pytest.fail(f"marker slo: {error}", pytrace=False)


def _objectives(item: pytest.Item) -> list[str]:
    """The objectives of all markers of the test: its own, and those of its class and module."""
    return list(dict.fromkeys(text for marker in item.iter_markers("slo") for text in marker.args))


def _is_strict(item: pytest.Item) -> bool:
    marker = item.get_closest_marker("slo")
    assert marker is not None
    if unknown := marker.kwargs.keys() - {"strict"}:
        pytest.fail(f"marker slo: unknown argument {unknown.pop()!r}: use strict=True or False", pytrace=False)
    default = item.config.getoption("--slo-strict") or item.config.getini("slo_strict")
    return bool(marker.kwargs.get("strict", default))


def _described(run: "Run") -> str:
    states = [one.status for one in run.slo]
    judged = ", ".join(f"{states.count(state)} {state}" for state in ("met", "missed", "undecided") if state in states)
    return f"{run.verdict}{f', objectives: {judged}' if judged else ''}, {run.folder}"


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print a line for each run of the tests, with the first test that used it."""
    tests: dict[str, str] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", "") == "call":
                for name, text in report.user_properties:
                    if name == PROPERTY:
                        tests.setdefault(text, report.nodeid)
    if tests:
        terminalreporter.section("inferometer")
        for text, test in tests.items():
            terminalreporter.write_line(f"{test}: {text}")
