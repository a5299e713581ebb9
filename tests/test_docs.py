"""The docs say what the code does: generated pages are up to date, links lead somewhere, and examples run."""

import asyncio
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import click
import numpy as np
import pytest
import yaml
from helpers import measure, polite, scripted

from inferometer.analysis.slo_expression import parse_all
from inferometer.cli.data_convert import command as convert
from inferometer.cli.main import main
from inferometer.cli.serve import command as serve
from inferometer.compat import converting, perf_analyzer
from inferometer.compat.converting import to_yaml
from inferometer.config.engines import campaign_from, variants
from inferometer.config.grid import grid_from_mapping
from inferometer.report.json import encode
from inferometer.serve import backends
from inferometer.serve.background import running, serving
from inferometer.serve.models import configs, statistics
from inferometer.serve.models.registry import Models
from inferometer.serve.models.types import Inference, Refused
from inferometer.serve.settings import Settings, simulator
from inferometer.serve.sim.settings import Fixed
from inferometer.tensors import Tensor, from_numpy, to_numpy

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "examples/README.md")),
    *sorted((ROOT / "bench").glob("*.md")),
    *sorted(DOCS.rglob("*.md")),
]
CONFIG = (DOCS / "reference" / "config.md").read_text(encoding="utf-8")
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())


def test_generated_pages_are_up_to_date() -> None:
    for name, text in runpy.run_path(str(ROOT / "tools" / "write_docs.py"))["PAGES"].items():
        assert (DOCS / name).read_text(encoding="utf-8") == text(), f"docs/{name}: run make docs"


@each_page
def test_links_lead_to_files_and_headings_that_exist(page: Path) -> None:
    for link in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
        if not link.startswith("http"):
            path, _, heading = link.partition("#")
            target = page.parent / path if path else page
            assert target.exists(), link
            assert not heading or heading in _headings(target), link


def test_the_index_lists_every_page() -> None:
    linked = {(DOCS / link).resolve() for link in re.findall(r"\]\(([^)#]+\.md)", (DOCS / "README.md").read_text())}
    assert linked >= {page for page in DOCS.rglob("*.md") if page != DOCS / "README.md"}


def test_pages_that_messages_name_exist() -> None:
    """Messages and docstrings send readers to docs/...; those pages must not have moved."""
    stems = {page.stem for page in DOCS.rglob("*.md")}
    for path in (ROOT / "src").rglob("*.py"):
        for name in re.findall(r"`inferometer docs ([a-z-]+)`", path.read_text(encoding="utf-8")):
            assert name in stems, f"{path.relative_to(ROOT)} names the page {name}"
    for path in [*(ROOT / "src").rglob("*.py"), *(ROOT / "tools").rglob("*.py"), ROOT / "Makefile"]:
        for name in re.findall(r"docs/[\w/-]+\.(?:md|svg)", path.read_text(encoding="utf-8")):
            assert (ROOT / name).exists(), f"{path.relative_to(ROOT)} names {name}"


@each_page
def test_yaml_examples_are_valid(page: Path) -> None:
    for block in _blocks(page, "yaml"):
        if block.startswith("# engines.yaml"):
            variants(campaign_from(yaml.safe_load(block)))
        elif not block.startswith("# config.yaml"):
            tree = yaml.safe_load(block)
            grid_from_mapping({"server": {"url": "http://x"}} | tree)


@each_page
def test_commands_and_flags_in_examples_exist(page: Path) -> None:
    for line in _commands(page):
        arguments = shlex.split(line, comments=True)[1:]
        if not arguments or arguments[0].isupper():  # `inferometer`, `inferometer COMMAND --help`
            continue
        command = main.get_command(click.Context(main), arguments[0])
        if command is None:
            assert arguments[0].startswith("-") and arguments[0] in _options(main), line
            continue
        if arguments[:2] == ["data", "convert"]:
            command = convert
        flags = _options(command)
        if arguments[0] == "perf-analyzer":  # whose options are not click's
            flags |= {name for option in perf_analyzer.OPTIONS for name in option.names.split()}
        if arguments[0] == "convert" and "--" in arguments:  # what follows is another tool's
            arguments = arguments[: arguments.index("--")]
        for argument in arguments[1:]:
            flag = argument.partition("=")[0]
            if re.fullmatch(r"--?[a-z][\w-]*", flag):
                assert flag in flags, line
        for option, argument in pairwise(arguments):
            key = argument.partition("=")[0]
            if option == "--set" and key not in ("load.type", "data.type", "KEY"):
                assert f"| `{key}` |" in CONFIG, line


def test_converted_script_is_the_file_beside_it() -> None:
    page = DOCS / "how-to" / "convert.md"
    (script,), (file, *_) = _blocks(page, "sh"), _blocks(page, "yaml")
    assert to_yaml(converting.convert([script])).strip() == file.strip()


def test_objectives_in_examples_can_be_parsed() -> None:
    for page in PAGES:
        for line in _commands(page):
            arguments = shlex.split(line, comments=True)
            given = [
                slo for option, slo in pairwise(arguments) if option == "--slo" and "ttfft" not in slo and slo != "..."
            ]
            parse_all(given)
        for block in _blocks(page, "yaml"):
            parse_all(yaml.safe_load(block).get("slo", []))


def test_make_targets_in_examples_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for page in PAGES:
        assert set(re.findall(r"(?:^    |`)make ([a-z]+)", page.read_text(encoding="utf-8"), re.MULTILINE)) <= targets


def test_the_exit_status_is_the_same_on_both_pages() -> None:
    first, second = (DOCS / name for name in ("reference/cli.md", "how-to/ci-gate.md"))
    statuses = [re.findall(r"^\| (\d+) \|", page.read_text(encoding="utf-8"), re.MULTILINE) for page in (first, second)]
    assert statuses[0] == statuses[1]
    assert statuses[0]


# --- commands that a reader would copy -------------------------------------------------------------------------------


def _shell(script: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    """Run a script as a reader would: with this Python and its commands first on the path, and these sources."""
    scripts = str(Path(sys.executable).parent)
    environment = os.environ | {
        "PATH": os.pathsep.join([scripts, os.environ["PATH"]]),
        "PYTHONPATH": str(ROOT / "src"),
    }
    return subprocess.run(
        ["sh", "-c", script], cwd=cwd, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("way", ["checkout", "installed"])
def test_a_client_can_be_written_as_the_page_says(way: str, tmp_path: Path) -> None:
    page = DOCS / "how-to" / "grpc-client.md"
    checkout, installed, serve_line, client_line = _blocks(page, "sh")
    (source,) = _blocks(page, "python")
    (tmp_path / "src").symlink_to(ROOT / "src")
    (tmp_path / "client.py").write_text(source, encoding="utf-8")
    generate = re.sub(r"^pip install .*$", "", checkout, flags=re.MULTILINE) if way == "checkout" else installed
    made = _shell(generate, tmp_path)
    assert made.returncode == 0, made.stderr
    assert serve_line == "inferometer serve identity\n"
    with serving(Settings(models=("identity",), http=0, grpc=0)) as server:
        address = server.grpc.removeprefix("grpc://")
        ran = _shell(client_line.replace("127.0.0.1:8001", address), tmp_path)
    assert ran.returncode == 0, ran.stderr
    output, timing = ran.stdout.splitlines()
    assert output == "OUTPUT0 [1. 2. 3. 4.]"
    assert re.fullmatch(r"queue;dur=[\d.]+, compute;dur=[\d.]+, total;dur=[\d.]+", timing)


@pytest.mark.parametrize(
    ("status", "verdict", "result"),
    [
        (0, "VALID", "missed: ttft.p99 < 150ms: 0.1\nundecided: failure_rate < 1%: 0.2\nmet: e2e.p99 < 9s: 0.3\n"),
        (1, "VALID", "missed: ttft.p99 < 150ms: too slow\nundecided: failure_rate < 1%: too short\n"),
        (1, "INVALID", "not measured: exit status 1\nlag: the client sent late\n"),
        (2, "VALID", "not measured: exit status 2\n"),
    ],
)
def test_the_gate_decides_as_the_page_says(status: int, verdict: str, result: str, tmp_path: Path) -> None:
    """The page's script, with stand-ins for the run and the server; the summary is a real one, with results of our choice."""
    if shutil.which("jq") is None:
        pytest.skip("jq is not installed")
    with scripted(polite) as url:
        _, summary = measure(tmp_path / "runs", url, slo=["ttft.p99 < 150ms", "failure_rate < 1%", "e2e.p99 < 9s"])
    tree = json.loads(encode(summary))
    tree["verdict"] = verdict
    outcomes = (("missed", 0.1, "too slow"), ("undecided", 0.2, "too short"), ("met", 0.3, "fast"))
    for slo, (outcome, value, reason) in zip(tree["slos"], outcomes, strict=True):
        assert {"status", "value", "reason"} <= slo.keys()
        slo.update({"status": outcome, "value": value, "reason": reason})
    for check in tree["checks"]:
        is_lag = verdict == "INVALID" and check["name"] == "completed"
        check.update(
            {"name": "lag", "status": "fail", "message": "the client sent late"} if is_lag else {"status": "pass"}
        )
    (tmp_path / "given.json").write_text(json.dumps(tree), encoding="utf-8")
    commands = tmp_path / "bin"
    commands.mkdir()
    (commands / "inferometer").write_text(
        f"#!/bin/sh\nif [ $1 = serve ]; then exec sleep 60; fi\ncp given.json summary.json\nexit {status}\n"
    )
    (commands / "curl").write_text("#!/bin/sh\n")
    for command in commands.iterdir():
        command.chmod(0o755)
    (script,) = _blocks(DOCS / "how-to" / "ci-gate.md", "sh")
    ended = _shell(f"PATH={shlex.quote(str(commands))}:$PATH\n{script}", tmp_path)
    assert (ended.returncode, ended.stdout) == (status, result), ended.stderr


@pytest.mark.slow
def test_parts_can_be_measured_and_merged_as_the_page_says(tmp_path: Path) -> None:
    page = DOCS / "how-to" / "scale-out.md"
    (script,), (file,) = _blocks(page, "sh"), _blocks(page, "yaml")
    with running(simulator(timing=Fixed(ttft=0.01, itl=0.001))) as url:
        quick = file.replace("http://127.0.0.1:8000", url).replace("30s", "2s").replace("output: 64", "output: 8")
        (tmp_path / "bench.yaml").write_text(quick, encoding="utf-8")
        ran = _shell(script, tmp_path)
    assert ran.returncode in (0, 1), ran.stderr  # it may be INVALID on a busy machine
    assert "3 of 3 parts" in ran.stdout and "120 ok" in ran.stdout, ran.stdout
    assert len(list((tmp_path / "parts").glob("*-part?-*"))) == 3


# --- the reference server --------------------------------------------------------------------------------------------

SERVE = DOCS / "reference" / "server.md"
BACKENDS = DOCS / "how-to" / "serve-your-model.md"


@pytest.mark.parametrize("page", [SERVE, BACKENDS], ids=lambda page: page.name)
def test_model_configurations_are_valid_and_name_backends_that_exist(page: Path) -> None:
    yamls = [block for block in _blocks(page, "yaml") if block.startswith("# config.yaml")]
    examples = [configs.from_pbtxt(block) for block in _blocks(page, "pbtxt")] + [
        configs.from_tree(yaml.safe_load(one)) for one in yamls
    ]
    assert examples
    for config in examples:
        assert backends.backend_of(config)
        assert configs.specs(config)
        assert configs.policy(config)


def test_a_configuration_means_the_same_as_pbtxt_and_as_yaml() -> None:
    (text,) = _blocks(SERVE, "pbtxt")
    (same,) = (block for block in _blocks(SERVE, "yaml") if block.startswith("# config.yaml"))
    assert configs.from_pbtxt(text) == configs.from_tree(yaml.safe_load(same))


def test_metrics_of_the_server_are_those_that_are_documented() -> None:
    async def names() -> set[str]:
        models = Models(asyncio.get_running_loop())
        page = statistics.page(models, 0.0).decode()
        await models.close()
        return set(re.findall(r"^# TYPE (\S+)", page, re.MULTILINE))

    assert set(re.findall(r"`((?:nv|process|inferometer)_\w+)`", SERVE.read_text(encoding="utf-8"))) == asyncio.run(
        names()
    )


def test_options_of_the_server_that_are_documented_exist() -> None:
    section = SERVE.read_text(encoding="utf-8").partition("## Running it")[2].partition("## Clients by others")[0]
    documented = set(re.findall(r"`(--[a-z-]+)", section))
    infer = main.get_command(click.Context(main), "infer")
    assert infer is not None
    assert {"--tls-cert", "--max-message", "--idle", "--drain"} <= documented <= _options(serve) | _options(infer)


def test_every_backend_has_a_line_in_the_table() -> None:
    table = BACKENDS.read_text(encoding="utf-8").partition("| backend |")[2].partition("Install with")[0]
    assert set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) == set(backends.LOADERS)
    for backend, extra in backends.EXTRAS.items():
        (line,) = (line for line in table.splitlines() if line.startswith(f"| `{backend}`"))
        assert f"`inferometer[{extra}]`" in line


def test_python_models_do_what_the_page_says(tmp_path: Path) -> None:
    scale, words = _blocks(BACKENDS, "python")
    x = from_numpy("X", np.array([[1, 2, 3]], np.float32), "FP32")
    (output,) = _outputs(tmp_path / "scale.py", scale, x, factor=10)
    np.testing.assert_array_equal(output, [[11, 21, 31]])
    with pytest.raises(Refused, match=r"factor must be a number \(got .a.\)"):
        _outputs(tmp_path / "scale.py", scale, x, factor="a")
    text = from_numpy("text_input", np.array([b"one two three"], object), "BYTES")
    assert [output.item() for output in _outputs(tmp_path / "words.py", words, text)] == [b"one", b"two", b"three"]


def _outputs(path: Path, source: str, given: Tensor, **parameters: int | str) -> list[np.ndarray]:
    """The outputs of the model at `path` for one request, as the server would send them."""
    path.write_text(source, encoding="utf-8")
    made: list[Tensor] = []

    async def infer() -> None:
        loop = asyncio.get_running_loop()
        models = Models(loop)
        try:
            models.add(str(path))
            await models.start()
            end: asyncio.Future[Refused | None] = loop.create_future()
            models.submit(
                Inference(
                    path.stem,
                    {given.name: given},
                    responded=made.extend,
                    ended=end.set_result,
                    arrived=0,
                    parameters=parameters,
                )
            )
            refused = await asyncio.wait_for(end, 30)
        finally:
            await models.close()
        if refused is not None:
            raise refused

    asyncio.run(infer())
    return [to_numpy(output) for output in made]


def _blocks(page: Path, kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


def _commands(page: Path) -> Iterator[str]:
    """Every `inferometer ...` line of the page: in shell blocks, in indented examples, and as inline code."""
    text = page.read_text(encoding="utf-8")
    blocks = "".join(_blocks(page, "sh"))
    indented = "\n".join(
        re.findall(r"^    (?:\$ )?(.*)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
    )
    lines = re.findall(
        r"^(?:\.venv/bin/|taskset -c 1 )?(inferometer .*?)(?: >.*)?(?: &)?$", blocks + indented, re.MULTILINE
    )
    prose = re.sub(r"\s+", " ", re.sub(r"```.*?```|^    [^\n]*$", "", text, flags=re.DOTALL | re.MULTILINE))
    for line in [*lines, *re.findall(r"`(inferometer [^`]*)`", prose)]:
        yield line + "'" if line.count("'") % 2 else line  # an argument that goes on in the next line


def _options(command: click.Command) -> set[str]:
    named = {name for parameter in command.params for name in [*parameter.opts, *parameter.secondary_opts]}
    return named | {"--help", "-h"}


def _headings(page: Path) -> set[str]:
    """The anchors of the page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
