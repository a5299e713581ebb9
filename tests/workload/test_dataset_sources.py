"""Requests from OpenAI's batch files, from Python code and from hubs."""

import json
import subprocess
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

import msgspec
import pytest

from inferometer import workload
from inferometer.apis import APIS
from inferometer.config.data import Hub, Mix, OpenAiBatch, PythonCode, TrafficClass
from inferometer.errors import UserError
from inferometer.workload.datasets import hub

# --- batch files -----------------------------------------------------------------------------------------------------


def batch_file(folder: Path, *bodies: dict[str, Any], url: str = "/v1/chat/completions") -> str:
    path = folder / "batch.jsonl"
    lines = ({"custom_id": str(n), "method": "POST", "url": url, "body": body} for n, body in enumerate(bodies))
    path.write_text("\n".join(json.dumps(line) for line in lines))
    return str(path)


def test_the_body_of_a_batch_line_is_sent_as_it_is(tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]
    body = {"model": "big", "messages": messages, "max_completion_tokens": 9, "temperature": 0.5, "stream": True}
    path = batch_file(tmp_path, body)
    (request,) = workload.build(OpenAiBatch(path=path), 0, [0])
    assert (request.payload, request.n_out) == (messages, 9)
    assert request.options.body == {"max_completion_tokens": 9, "temperature": 0.5}
    assert request.options.model == ""
    assert workload.build(OpenAiBatch(path=path, model="file"), 0, [0])[0].options.model == "big"
    path = batch_file(tmp_path, {"prompt": [1, 2, 3]}, {"prompt": "text"}, url="/v1/completions")
    ids, text = workload.build(OpenAiBatch(path=path), 0, range(2))
    assert ids.options.body["prompt"] == [1, 2, 3]
    assert (text.payload, text.options.body) == ("text", {})


def test_the_url_of_a_batch_must_be_that_of_the_api(tmp_path: Path) -> None:
    spec = OpenAiBatch(path=batch_file(tmp_path, {"prompt": "a"}, url="/v1/completions"))
    workload.check(spec, APIS["completions"])
    with pytest.raises(UserError, match=r"the requests are for /v1/completions, but server\.api is chat") as error:
        workload.check(spec, APIS["chat"])
    assert error.value.remedy == "use {server.api=completions}"
    mix = Mix(classes=[TrafficClass(name="a", data=spec)])
    with pytest.raises(UserError, match=r"but server\.api is chat"):
        workload.check(mix, APIS["chat"])
    path = batch_file(tmp_path, {"prompt": "a"})
    with Path(path).open("a") as file:
        file.write("\n" + json.dumps({"custom_id": "x", "url": "/v1/embeddings", "body": {"input": "a"}}))
    with pytest.raises(UserError, match="has requests for /v1/chat/completions and /v1/embeddings"):
        workload.check(OpenAiBatch(path=path), APIS["chat"])


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ({"custom_id": "1"}, "body must be an object, got null"),
        ({"body": {"model": "m"}}, "its body has no messages, prompt, input"),
        ({"method": "GET", "body": {"prompt": "a"}}, "method must be POST, got 'GET'"),
        ({"body": {"messages": []}}, "body.messages must be a list of objects"),
        ({"body": {"prompt": 5}}, "body.prompt must be a string or a list, got a number"),
    ],
)
def test_a_broken_batch_line_says_why(tmp_path: Path, line: Any, what: str) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps(line))
    with pytest.raises(UserError, match=what) as error:
        workload.distinct(OpenAiBatch(path=str(tmp_path / "a.jsonl")))
    assert error.value.remedy.startswith('write each line as {"custom_id"')


# --- Python code -----------------------------------------------------------------------------------------------------


def code(folder: Path, text: str, **settings: Any) -> PythonCode:
    path = folder / "gen.py"
    path.write_text(text)
    return PythonCode(path=str(path), **settings)


GENERATOR = """
from neighbour import WORD

def requests(topic="x"):
    yield f"{WORD} {topic}"
    yield [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    yield {"prompt": "p", "output": 7, "body": {"top_k": 1}, "headers": {"X-A": "1"}}
    yield {"turns": ["a", "b"]}
    yield {"nothing": 1}
    while True:
        yield "more"
"""


def test_a_function_yields_requests(tmp_path: Path) -> None:
    (tmp_path / "neighbour.py").write_text("WORD = 'hello'")
    spec = code(tmp_path, GENERATOR, arguments={"topic": "rivers"}, rows=10)
    text, messages, options, session, more = workload.build(spec, 0, range(5))
    assert text.payload == "hello rivers"
    assert messages.payload == [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    assert (options.n_out, options.options.body, options.options.headers) == (7, {"top_k": 1}, {"X-A": "1"})
    assert len(session.later) == 1
    assert more.payload == "more"
    assert workload.distinct(spec) == 9
    assert workload.notes(spec)["skipped"]["first"].startswith("line 5: it has no prompt")


def test_the_digest_is_of_what_the_function_yields(tmp_path: Path) -> None:
    def digest(text: str, **arguments: Any) -> str:
        return workload.digest(code(tmp_path, text, rows=5, arguments=arguments), 0)

    first = digest("def requests(n=3):\n    return [str(i) for i in range(n)]")
    assert first == digest("def requests(n=3):\n    yield from map(str, range(n))")
    assert first != digest("def requests(n=14):\n    yield from map(str, range(n))")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("def requests():\n    yield 'a'\n    yield 1 / 0", r"gen\.py, line 3: ZeroDivisionError: division by zero"),
        ("import no_such_module_at_all", r"gen\.py, line 1: ModuleNotFoundError"),
        ("def requests(:\n", r"gen\.py, line 1: SyntaxError"),
        ("import sys\nsys.exit(4)", r"gen\.py, line 2: SystemExit: 4"),
        ("def other(): pass", r"has no function 'requests'"),
        ("def requests(): return 'a'", r"line 1: requests returned str"),
        ("def requests():\n    yield 5", r"line 2: requests yielded int as item 0"),
        ("def requests():\n    yield {'prompt': object()}", r"line 2: item 0 of requests cannot be written as JSON"),
        ("def requests(a): yield a", r"gen\.py, line 1: requests: missing a required argument: 'a'"),
        ("def requests():\n    return iter(())", r"contains no requests"),
    ],
)
def test_an_error_in_the_users_code_names_its_line(tmp_path: Path, text: str, what: str) -> None:
    with pytest.raises(UserError, match=what) as error:
        workload.build(code(tmp_path, text), 0, [0])
    assert error.value.remedy


RANDOM = "import random\ndef requests():\n    yield from (str(random.random()) for _ in range(5))"


def test_a_run_generates_requests_once_for_all_its_processes(tmp_path: Path) -> None:
    spec = workload.pinned(code(tmp_path, RANDOM), 0)
    program = "import sys, msgspec; from inferometer import workload; from inferometer.config.data import PythonCode; "
    program += "spec = msgspec.json.decode(sys.stdin.buffer.read(), type=PythonCode); "
    program += "print([request.payload for request in workload.build(spec, 0, range(5))], workload.digest(spec, 0))"
    child = subprocess.run(
        [sys.executable, "-c", program], input=msgspec.json.encode(spec), capture_output=True, check=True
    )
    own = [request.payload for request in workload.build(spec, 0, range(5))]
    assert child.stdout.decode().strip() == f"{own} {workload.digest(spec, 0)}"
    assert [
        request.payload for request in workload.build(workload.pinned(code(tmp_path, RANDOM), 0), 0, range(5))
    ] != own


def test_a_process_that_generates_something_else_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = workload.pinned(code(tmp_path, RANDOM), 0)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(UserError, match="requests generates something else every time it is called"):
        workload.build(spec, 0, [0])


def test_a_function_that_takes_a_seed_gets_that_of_the_run(tmp_path: Path) -> None:
    text = "def requests(seed):\n    yield f'seed {seed}'"
    assert workload.build(workload.pinned(code(tmp_path, text), 7), 7, [0])[0].payload == "seed 7"
    assert (
        workload.build(workload.pinned(code(tmp_path, text, arguments={"seed": 3}), 7), 7, [0])[0].payload == "seed 3"
    )


def test_the_line_is_named_for_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code(tmp_path, "def requests():\n    yield 1 / 0")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"gen\.py, line 2: ZeroDivisionError"):
        workload.build(PythonCode(path="gen.py"), 0, [0])


# --- hubs ------------------------------------------------------------------------------------------------------------

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def downloads(cache: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A stand-in for the library, which notes its calls."""
    calls: list[Any] = []

    def load_dataset(*arguments: Any, **named: Any) -> Any:
        calls.append((arguments, named))
        if arguments[0] == "no/where":
            raise FileNotFoundError("Dataset 'no/where' doesn't exist on the Hub")
        return ({"question": f"number {i}", "picture": object()} for i in range(10**9))

    class HfApi:
        def dataset_info(self, name: str, revision: str | None) -> Any:
            return types.SimpleNamespace(sha=COMMIT)

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "huggingface_hub", types.SimpleNamespace(HfApi=HfApi))  # type: ignore[arg-type]
    return calls


def test_a_dataset_of_a_hub_is_pinned_and_downloaded_once(downloads: list[Any]) -> None:
    spec = workload.pinned(Hub(path="owner/name", subset="en", split="test", revision="main", rows=5))
    assert isinstance(spec, Hub)
    assert spec.revision == COMMIT
    for _ in range(2):
        assert [request.payload for request in workload.build(spec, 0, [0, 6])] == ["number 0", "number 1"]
    assert downloads == [(("owner/name", "en"), {"split": "test", "revision": COMMIT, "streaming": True})]
    assert workload.distinct(msgspec.structs.replace(spec, rows=7)) == 7
    assert len(downloads) == 2


def test_an_unknown_dataset_is_an_error(downloads: list[Any]) -> None:
    with pytest.raises(UserError, match="the dataset no/where cannot be loaded: FileNotFoundError") as error:
        workload.pinned(Hub(path="no/where"))
    assert "check the name" in error.value.remedy


def test_a_missing_library_is_an_error_with_the_extra(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match="needs the library `datasets`") as error:
        workload.pinned(Hub(path="owner/name"))
    assert error.value.remedy == "pip install 'inferometer[hub]'"


@pytest.mark.hub
def test_the_library_reads_a_local_folder(cache: Path, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "train.jsonl").write_text("".join(json.dumps({"prompt": f"p{i}"}) + "\n" for i in range(9)))
    spec = workload.pinned(Hub(path=str(folder), rows=4))
    assert [request.payload for request in workload.build(spec, 0, range(4))] == ["p0", "p1", "p2", "p3"]
    assert isinstance(spec, Hub)
    with pytest.raises(UserError, match="Bad split"):
        hub.rows_file(msgspec.structs.replace(spec, split="tst"))
