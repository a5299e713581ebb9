"""The pytest plugin: the fixture `inferometer_run` and the marker `slo`."""

from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import yaml
from command import LENIENT

from inferometer.serve.background import Running

pytest_plugins = ["pytester"]

IS_INSTALLED = any(each.value == "inferometer.public.pytest_plugin" for each in entry_points(group="pytest11"))
PLUGIN = () if IS_INSTALLED else ("-p", "inferometer.public.pytest_plugin")
QUICK: dict[str, Any] = {key: yaml.safe_load(str(value)) for key, value in LENIENT.items()} | {
    "load": {"type": "closed", "concurrency": 4, "requests": 24},
    "data": {"type": "synthetic", "input": 16, "output": 4},
}


def outcome(pytester: pytest.Pytester, source: str, *options: str, **counts: int) -> pytest.RunResult:
    pytester.makepyfile(source)
    # In a process of its own: in this one, pytester would drop the modules that the tests import, and leave two copies of some.
    result = pytester.runpytest_subprocess(*PLUGIN, "-p", "no:cacheprovider", *options)
    result.assert_outcomes(**counts)
    return result


def test_objectives_gate_tests(pytester: pytest.Pytester, served: Running) -> None:
    source = f"""
import pytest
URL, QUICK = {served.url!r}, {QUICK!r}

@pytest.mark.slo("ttft.p50 < 10s")
def test_met(inferometer_run):
    run = inferometer_run(URL, QUICK)
    assert run.slo[0].status == "met"

@pytest.mark.slo("ttft.p50 < 1us")
def test_missed(inferometer_run):
    inferometer_run(URL, QUICK)

@pytest.mark.slo("failure_rate < 1%")
def test_undecided_is_within_the_limit(inferometer_run):
    inferometer_run(URL, QUICK)

@pytest.mark.slo("failure_rate < 1%", strict=True)
def test_undecided_is_not_enough(inferometer_run):
    inferometer_run(URL, QUICK)

@pytest.mark.slo("ttft.p50 < 10s")
def test_invalid(inferometer_run):
    inferometer_run(URL, QUICK | {{"server.timeouts": {{"first_token": "1ms"}}}})

@pytest.mark.slo()
def test_objectives_of_the_config(inferometer_run):
    inferometer_run(URL, QUICK, slo=["ttft.p50 < 1us"])

@pytest.mark.slo("ttft.p50 < 10s")
def test_without_a_run():
    pass

def test_without_a_marker(inferometer_run):
    assert inferometer_run(URL, QUICK, slo="ttft.p50 < 1us").slo[0].status == "missed"
"""
    result = outcome(pytester, source, "--inferometer-output=kept", passed=3, failed=5)
    result.stdout.fnmatch_lines_random(
        [
            "ttft.p50 < 1us: missed: *",
            "failure_rate < 1%: undecided: *",
            "INVALID: *",
            "the test is marked with slo, but it has no run: use the fixture inferometer_run",
            "*= inferometer =*",
            "*::test_met: VALID, objectives: 1 met, *kept/*",
        ]
    )
    kept = [path for path in (pytester.path / "kept").iterdir() if not path.is_symlink()]
    assert len(kept) == 7 and all((path / "summary.json").exists() for path in kept)


@pytest.mark.slow
def test_runs_of_other_fixtures_are_judged_and_strict_is_an_option(pytester: pytest.Pytester, served: Running) -> None:
    source = f"""
import inferometer, pytest

@pytest.fixture(scope="module")
def measured():
    return inferometer.run({served.url!r}, {QUICK!r}, output="runs")

@pytest.mark.slo("ttft.p50 < 10s")
def test_first(measured):
    pass

@pytest.mark.slo("failure_rate < 1%", strict=False)
def test_second(measured):
    pass

@pytest.mark.slo("ttfft < 5")
def test_wrong(measured):
    pass

@pytest.mark.slo("ttft.p50 < 10s", undecided="pass")
def test_wrong_argument(measured):
    pass
"""
    result = outcome(pytester, source, "--slo-strict", passed=1, failed=3)
    result.stdout.fnmatch_lines_random(
        ["*ttfft*", "*unknown argument 'undecided'*", "ttft.p50 < 10s: met: met with margin*"]
    )


@pytest.mark.slow
def test_a_failing_test_is_not_hidden_by_its_objectives(pytester: pytest.Pytester, served: Running) -> None:
    source = f"""
import pytest

@pytest.mark.slo("ttft.p50 < 1us")
def test_own(inferometer_run):
    inferometer_run({served.url!r}, {QUICK!r}, output="runs")
    assert False, "my own reason"
"""
    outcome(pytester, source, failed=1).stdout.fnmatch_lines(["*my own reason*"])


@pytest.mark.slow
def test_workers_of_xdist_report_their_runs(pytester: pytest.Pytester, served: Running) -> None:
    pytest.importorskip("xdist")
    pytester.makepyfile(
        f"""
import pytest

@pytest.mark.slo("ttft.p50 < 10s")
@pytest.mark.parametrize("number", range(2))
def test_met(inferometer_run, number):
    inferometer_run({served.url!r}, {QUICK!r}, output="runs")
"""
    )
    result = pytester.runpytest_subprocess(*PLUGIN, "-n2")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines_random(["*test_met?0?: VALID, objectives: 1 met, *", "*test_met?1?: VALID, *"])


def test_the_marker_is_registered_and_the_plugin_is_declared(pytester: pytest.Pytester) -> None:
    pytester.runpytest_subprocess(*PLUGIN, "--markers").stdout.fnmatch_lines(["@pytest.mark.slo(*"])
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    assert '[project.entry-points.pytest11]\ninferometer = "inferometer.public.pytest_plugin"' in project
