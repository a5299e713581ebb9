"""The use of resources in whole runs: from the observers to the report, live and again from the folder."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from fake_nvml import FakeNvml, NVMLError
from helpers import measure

from inferometer import store
from inferometer.analysis.summary import summarise
from inferometer.errors import UserError
from inferometer.report import console

LOAD = {"type": "closed", "concurrency": 2, "duration": "1s"}
OFTEN = {"interval": "100ms", "prometheus": []}


@pytest.mark.slow
def test_a_run_has_the_use_of_this_machine_and_of_named_processes(tmp_path: Path, sim: str) -> None:
    burning = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        observe = OFTEN | {"processes": [burning.pid]}
        run, summary = measure(tmp_path, sim, server={"model": "sim"}, load=LOAD, observe=observe)
    finally:
        burning.kill()
        burning.wait()
    assert {"host", "process"} <= {each.source for each in run.series()}
    use = summary.resources
    assert use is not None and use.host is not None and use.is_servers_machine
    assert run.manifest.host["has_server"] is True
    assert use.host.cpu is not None and 0 < use.host.cpu <= 1
    assert use.host.memory_total == psutil.virtual_memory().total
    assert use.host.loopback and use.host.loopback > 0
    process = use.processes[str(burning.pid)]
    assert process.cpu is not None and process.cpu > 0 and process.processes_max == 1
    assert {"host", "processes"} <= set(run.manifest.observer_cpu) and use.observing_share
    again = store.read(run.folder)
    assert summarise(again) == summary
    assert console.render(again, summarise(again)) == console.render(run, summary)


def test_a_run_has_the_energy_of_a_gpu(tmp_path: Path, sim: str, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml({"instant": 250_000, "temperature": NVMLError(3)})
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    run, summary = measure(tmp_path, sim, server={"model": "sim"}, load=LOAD, observe=OFTEN | {"host": False})
    use, rates = summary.resources, summary.throughput
    assert use is not None and use.host is None and use.energy is not None and rates.requests
    assert use.energy.joules == pytest.approx(250 * use.span)
    assert use.energy.per_request == pytest.approx(250 / rates.requests)
    assert run.manifest.observer_errors == {"GPU temperature": "Not Supported (GPU 0)"}


@pytest.mark.parametrize(
    ("observe", "line"),
    [
        ({"processes": ["no-such-server"]}, "observe.processes: no process on this machine is called no-such-server"),
        ({"processes": [0x7FFFFFF0]}, "observe.processes: there is no process with the id 2147483632 on this machine"),
        ({"interval": "1ms"}, "observe.interval: the interval is too short"),
    ],
)
def test_what_cannot_be_observed_is_an_error_before_the_run(
    tmp_path: Path, sim: str, observe: dict[str, object], line: str
) -> None:
    with pytest.raises(UserError) as caught:
        measure(tmp_path, sim, server={"model": "sim"}, load=LOAD, observe=observe)
    assert caught.value.line.removeprefix("config: ") == line
    assert not list(tmp_path.iterdir())
