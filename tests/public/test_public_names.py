"""The public names of the package: exactly these, documented, typed, and imported only when they are used."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import inferometer
from inferometer import options

SIGNATURES = {
    "Capacity": None,
    "Client": "(url, *, api='chat', headers=None, api_key=None, api_key_env=None, api_key_file=None, timeout=60.0, "
    "connect_timeout=10.0, verify=True, ca=None, cert=None, key=None)",
    "Comparison": None,
    "Error": None,
    "OutputDifference": None,
    "Run": None,
    "StageSummary": None,
    "Summary": None,
    "Text": None,
    "TextStream": None,
    "Timed": "(name='', *, cuda=False)",
    "capacity": "(config, overrides=None, /, *, progress=False, **settings)",
    "compare": "(a, b, *, fail_if=(), force=False)",
    "compare_outputs": "(reference, output, tolerance=0.02)",
    "dummy_inputs": "(source, *, count=None, model=None, names=None, batch=1, length=None, shapes=None, datatypes=None, "
    "fill='random', seed=None, as_='numpy', device='cpu')",
    "open": "(folder, *, slo=None)",
    "run": "(config, overrides=None, /, *, inputs=None, progress=False, **settings)",
    "timed": "(name='', *, cuda=False)",
}
"""Every public name, and what it is called with, besides the options of its command; None: users do not call it."""
MEMBERS = {
    "Run": "checks chunks config folder html judge metric passed report requests series slo summary to_pandas to_polars valid verdict",
    "Capacity": "basis by folder html interval limited_by passed probes report result value",
    "Comparison": "conditions differs html metrics notes passed report stages",
    "Client": "close config generate infer metadata ready stream",
    "Text": "arrivals e2e gaps input_tokens model output_tokens text ttft",
    "TextStream": "close result",
    "Timed": "all name seconds statistics",
    "OutputDifference": "agrees expected got largest mean relative tolerance where",
}


def bare(signature: inspect.Signature, command: str) -> str:
    """The signature without types, and without the keywords that the table of options has."""
    shown = [
        each
        for name, each in signature.parameters.items()
        if name not in options.rows_of(command) or command == "compare"
    ]
    return str(inspect.Signature([each.replace(annotation=inspect.Parameter.empty) for each in shown]))


def test_keywords_are_the_options_of_the_command() -> None:
    for command in ("run", "capacity", "compare"):
        function = getattr(inferometer, command)
        keywords, rows = inspect.signature(function).parameters, options.rows_of(command)
        if command != "compare":
            assert keywords.keys() >= {name for name, row in rows.items() if row.key}
            assert all(f"`{name}`" in (inspect.getdoc(function) or "") for name in keywords.keys() & rows.keys())
        known = {"config", "overrides", "inputs", "progress", "settings", "a", "b"}
        assert keywords.keys() - rows.keys() <= known, command


def test_the_public_names_are_these_and_no_others() -> None:
    assert set(inferometer.__all__) == {*SIGNATURES, "__version__"}
    assert set(dir(inferometer)) >= set(SIGNATURES)


@pytest.mark.parametrize("name", SIGNATURES)
def test_a_public_name_is_documented_and_keeps_its_signature(name: str) -> None:
    found = getattr(inferometer, name)
    assert inspect.getdoc(found)
    if SIGNATURES[name] is not None:
        assert bare(inspect.signature(found), name) == SIGNATURES[name]


@pytest.mark.parametrize("name", MEMBERS)
def test_a_public_class_has_these_members_and_documents_them(name: str) -> None:
    kind = getattr(inferometer, name)
    assert {each for each in dir(kind) if not each.startswith("_")} == set(MEMBERS[name].split())
    for member in MEMBERS[name].split():
        found = inspect.getattr_static(kind, member)
        if isinstance(found, property) or inspect.isfunction(found):
            assert inspect.getdoc(found), f"{name}.{member}"


def test_the_page_describes_every_name_and_member() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "python.md").read_text(encoding="utf-8")
    for name in SIGNATURES:
        assert f"`{name}`" in page or f"inferometer.{name}" in page, name
    for name, members in MEMBERS.items():
        section = page.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        for member in members.split():
            assert f"`{member}" in section, f"{name}.{member}"


def test_names_are_imported_when_they_are_used() -> None:
    code = """
import sys, inferometer
import inferometer.public.pytest_plugin
heavy = {"numpy", "msgspec", "pyarrow", "rich", "click", "asyncio", "jinja2", "yaml", "inferometer.conduct"}
before = heavy & sys.modules.keys()
import inferometer.capacity_search.search, inferometer.report.capacity_export, inferometer.conduct.capacity
print(before - {"asyncio"}, callable(inferometer.capacity), callable(inferometer.run), callable(inferometer.compare), callable(inferometer.open))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set() True True True True\n"
    code = "import sys, inferometer; print(sorted(name for name in sys.modules if name.startswith('inferometer')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "['inferometer']\n"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        inferometer.nothing  # noqa: B018


@pytest.mark.slow
def test_user_code_is_checked_by_strict_types(tmp_path: Path) -> None:
    """mypy --strict understands the public names as a user's code has them (py.typed)."""
    root = Path(__file__).parents[2]
    example = tmp_path / "example.py"
    example.write_text(
        """
from typing import assert_type
import inferometer

run = inferometer.run("bench.yaml", {"load.rate": 50}, progress=True, slo=["ttft.p99 < 500ms"])
assert_type(run, inferometer.Run)
assert_type(run.metric("ttft", "p99"), float)
assert_type(run.valid, bool)
assert_type(inferometer.open("runs/LATEST"), inferometer.Run)
assert_type(inferometer.compare(run, "runs/LATEST"), inferometer.Comparison)
assert_type(inferometer.capacity("bench.yaml", slo="chat").value, float | None)
with inferometer.Client("http://127.0.0.1:8000") as client:
    assert_type(client.generate("a"), inferometer.Text)
    assert_type(client.generate("a", stream=True), inferometer.TextStream)
    assert_type(client.ready(), bool)
run.metric(5)
""",
        encoding="utf-8",
    )
    (tmp_path / "mypy.ini").write_text(
        f"[mypy]\nstrict = true\nmypy_path = {root / 'src'}\n[mypy-pyarrow.*,pandas.*,polars.*,httptools.*,uvloop.*]\n"
        "ignore_missing_imports = true\n[mypy-ray.*]\nignore_missing_imports = true\nfollow_imports = skip\n",
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "mypy", "--config-file", str(tmp_path / "mypy.ini"), str(example)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    errors = [line for line in done.stdout.splitlines() if "error:" in line]
    assert len(errors) == 1 and 'Argument 1 to "metric"' in errors[0], done.stdout
    assert (root / "src" / "inferometer" / "py.typed").exists()
