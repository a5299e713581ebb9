"""`inferometer infer` from the outside: text, embeddings, tensors, images, any gRPC method; and errors of one line each."""

import json
import os
import pty
import signal
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import kserve_peers
import numpy as np
import pytest
import trustme
from command import Result, assert_one_line, cli, start
from google.protobuf import descriptor_pb2, descriptor_pool
from grpc_reflection.v1alpha import reflection
from helpers import NO_USAGE, STREAM, Client, http_response, polite, scripted
from PIL import Image

import inferometer
from inferometer.serve.background import running, serving
from inferometer.serve.settings import Settings, Tls, simulator
from inferometer.serve.sim.settings import Fixed
from inferometer.wire import protobuf
from inferometer.workload.tokenizer import load

HALF = NO_USAGE.index(b'data: {"choices":[{"delta":{"content":" two"')
"""Where the event after the first word begins."""


@pytest.fixture(scope="module")
def sim() -> Iterator[str]:
    with running(simulator(timing=Fixed(ttft=0.02, itl=0.002))) as url:
        yield url


@pytest.fixture(scope="module")
def kserve_http() -> Iterator[str]:
    with scripted(kserve_peers.over_http()) as url:
        yield url


@pytest.fixture(scope="module")
def kserve_grpc() -> Iterator[str]:
    with kserve_peers.over_grpc() as url:
        yield url


@pytest.fixture(params=["http", "grpc"])
def kserve(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(f"kserve_{request.param}"))


@pytest.fixture(scope="module")
def picture(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Red 255, green about 127.5, blue 0 everywhere: scaled by inception 1, 0 and -1."""
    path = tmp_path_factory.mktemp("images") / "flat.png"
    Image.new("RGB", (5, 4), (255, 128, 0)).save(path)
    return str(path)


def infer(*arguments: str | Path) -> Result:
    return cli("infer", *arguments)


def in_json(*arguments: str | Path) -> Any:
    result = infer(*arguments, "--json", "-")
    assert result.status == 0, result
    return json.loads(result.out)


# --- text ------------------------------------------------------------------------------------------------------------


def test_a_prompt_shows_text_tokens_and_times(sim: str) -> None:
    result = infer(sim, "--prompt", "Hello", "--output-tokens", "5")
    assert result.status == 0, result
    text, blank, title, *rest = result.out.splitlines()
    assert len(text.split()) == 5
    assert (blank, title) == ("", f" {sim} · sim · chat completions, streamed")
    printed = "\n".join(rest)
    assert "5 out" in printed and "the server's count" in printed
    for word in ("ttft", "itl", "e2e", "connect", "send", "wait", "receive", "total"):
        assert word in printed
    assert max(map(len, result.out.splitlines())) <= 100
    assert "\x1b" not in result.out


def test_a_prompt_as_json(sim: str) -> None:
    tree = in_json(sim, "--prompt", "Hello", "--max-tokens", "5")
    assert tree["tokens"]["output"] == tree["tokens"]["chunks"] == 5
    assert tree["tokens"]["ttft"] >= 0.02
    assert tree["tokens"]["e2e"] >= 0.028
    timing = tree["timing"]
    assert sum(timing[part] for part in ("connect", "send", "wait", "receive")) == pytest.approx(timing["total"])
    assert timing["request"] == tree["tokens"]["e2e"]


@pytest.mark.parametrize(
    "more",
    [
        ("--no-stream",),
        ("--api", "completions"),
        ("--api", "completions", "--no-stream"),
        ("--api", "messages"),
        ("--api", "messages", "--no-stream"),
    ],
)
def test_the_other_text_apis(sim: str, more: tuple[str, ...]) -> None:
    tree = in_json(sim, "--prompt", "Hello", "--max-tokens", "5", *more)
    assert len(tree["text"].split()) == 5
    assert (tree["tokens"]["ttft"] is None) == ("--no-stream" in more)


def test_an_embedding_is_shown_by_its_size_its_norm_and_its_first_numbers(sim: str) -> None:
    result = infer(sim, "--api", "embeddings", "--prompt", "Hello", "--parameter", "dimensions=8")
    assert result.status == 0, result
    assert result.out.splitlines()[0] == f" {sim} · sim · embeddings"
    assert "8 dimensions, norm 1\n" in result.out
    assert f"{load(None).count('Hello')} in" in result.out and "total" in result.out


@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_an_embedding_as_json(sim: str, encoding: str) -> None:
    flags = ("--parameter", "dimensions=8", "--parameter", f"encoding_format={encoding}")
    tree = in_json(sim, "--api", "embeddings", "--prompt", "Hello", *flags)
    (vector,) = tree["embeddings"]
    assert len(vector) == 8
    assert sum(value * value for value in vector) == pytest.approx(1)
    assert tree["tokens"] == {"input": load(None).count("Hello")}


def test_an_embedding_has_no_length_in_tokens(sim: str) -> None:
    assert_one_line(infer(sim, "--api", "embeddings", "--prompt", "Hello", "--output-tokens", "5"), "--output")


def test_flags_reach_the_server() -> None:
    seen: list[tuple[str, dict[str, str], bytes]] = []

    def script(client: Client) -> None:
        while request := client.request():
            seen.append(request)
            client.send(http_response(STREAM, extra="Server-Timing: queue;dur=2, compute;dur=0.5\r\n"))

    with scripted(script) as url:
        result = infer(
            url, "--prompt", "hi", "--model", "m", "--max-tokens", "7", "--parameter", "temperature=0", "--header", "X-A: b:c",
        )  # fmt: skip
    assert result.status == 0, result
    ((first, headers, body),) = seen
    assert first == "POST /v1/chat/completions HTTP/1.1"
    assert headers["x-a"] == "b:c"
    tree = json.loads(body)
    assert (tree["temperature"], tree["max_tokens"], tree["messages"][0]["content"]) == (0, 7, "hi")
    assert result.out.startswith("one two\n\n")
    assert "by its server-timing" in result.out
    assert [line.split()[1] for line in result.out.splitlines() if line.split()[:1] == ["queue"]] == ["2.000"]


def test_text_is_printed_as_it_arrives(tmp_path: Path) -> None:
    """The server continues only after the first word has been read from the output."""
    read, write = os.pipe()

    def script(client: Client) -> None:
        if not client.request():
            return
        client.send(f"HTTP/1.1 200 OK\r\nContent-Length: {len(NO_USAGE)}\r\n\r\n".encode() + NO_USAGE[:HALF])
        os.read(read, 1)
        client.send(NO_USAGE[HALF:])

    with scripted(script) as url:
        process = start("infer", url, "--prompt", "x", "--model", "m", cwd=tmp_path, PYTHONUNBUFFERED="1")
        assert process.stdout is not None
        assert process.stdout.read(3) == "one"
        os.write(write, b"!")
        out, _ = process.communicate(timeout=20)
    assert out.startswith(" two\n\n")
    assert "one per chunk" in out


def test_ctrl_c_ends_it_with_one_line(tmp_path: Path) -> None:
    def script(client: Client) -> None:
        if client.request():
            client.send(b"HTTP/1.1 200 OK\r\n\r\n" + NO_USAGE[:HALF])
            client.request()

    with scripted(script) as url:
        process = start("infer", url, "--prompt", "x", "--model", "m", cwd=tmp_path, PYTHONUNBUFFERED="1")
        assert process.stdout is not None
        assert process.stdout.read(3) == "one"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (130, "", "\ninferometer: interrupted\n")


@pytest.mark.parametrize(("environment", "colours"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_colours_on_a_terminal_unless_disabled(sim: str, environment: dict[str, str], colours: bool) -> None:
    parent, child = pty.openpty()
    clean = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    command = [sys.executable, "-m", "inferometer", "infer", sim, "--prompt", "x", "--max-tokens", "2"]
    done = subprocess.run(command, stdout=child, env=clean | {"TERM": "xterm"} | environment, check=True, timeout=30)
    os.close(child)
    assert done.returncode == 0
    out = b""
    while True:
        try:
            piece = os.read(parent, 65536)
        except OSError:  # how a terminal says that its other end is closed
            break
        out += piece
    os.close(parent)
    assert (b"\x1b[" in out) == colours


def test_generate_streams_text_too() -> None:
    events = b'data: {"text_output":"one"}\n\ndata: {"text_output":" two"}\n\n'
    peer = kserve_peers.over_http()

    def script(client: Client) -> None:
        rest = client.request
        while request := rest():
            if "generate" in request[0]:
                assert json.loads(request[2]) == {"text_input": "hi", "stream": True, "max_tokens": 2, "top_p": 0.5}
                client.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(events) + events)
            else:
                client.request = iter([request, None]).__next__  # type: ignore[method-assign, assignment]
                peer(client)
                client.request = rest  # type: ignore[method-assign]

    with scripted(script) as url:
        result = infer(
            url, "--api", "generate", "--model", "pair", "--prompt", "hi", "--max-tokens", "2", "--parameter", "top_p=0.5"
        )  # fmt: skip
    assert result.out.startswith("one two\n\n"), result
    assert "Triton's generate, streamed" in result.out


def test_an_incomplete_response_shows_what_arrived_and_fails() -> None:
    def script(client: Client) -> None:
        client.request()
        client.send(b"HTTP/1.1 200 OK\r\n\r\n" + NO_USAGE[:HALF])

    with scripted(script) as url:
        result = infer(url, "--prompt", "x", "--model", "m")
    assert (result.status, result.out) == (2, "one\n")
    assert "incomplete response" in result.err and len(result.err.splitlines()) == 2


def test_over_tls_with_a_given_ca_or_without_verification(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with scripted(polite, context) as url:
        arguments = (url, "--prompt", "x", "--model", "m")
        assert "TCP and TLS" in infer(*arguments, "--ca", tmp_path / "ca.pem").out
        assert "not by the kernel" in infer(*arguments, "--insecure").out
        assert_one_line(infer(*arguments), "certificate is not accepted", "with --ca", "--insecure")


@pytest.mark.parametrize("scheme", ["https", "grpcs"])
def test_over_mutual_tls(tmp_path: Path, scheme: str) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca")
    for name in ("127.0.0.1", "me"):
        leaf = authority.issue_cert(name)
        leaf.cert_chain_pems[0].write_to_path(tmp_path / f"{name}.cert")
        leaf.private_key_pem.write_to_path(tmp_path / f"{name}.key")
    tls = Tls(*(str(tmp_path / name) for name in ("127.0.0.1.cert", "127.0.0.1.key", "ca")))
    with serving(Settings(models=("identity",), http=0, grpc=0, tls=tls)) as server:
        url = {"https": server.url, "grpcs": server.grpc}[scheme]
        assert url.startswith(scheme)
        arguments = (url, "--api", "kserve", "--model", "identity", "--ca", tmp_path / "ca")
        result = infer(*arguments, "--cert", tmp_path / "me.cert", "--key", tmp_path / "me.key")
        assert (result.status, result.err) == (0, "")
        assert_one_line(infer(*arguments), "certificate", "--cert")
        plain = url.replace(f"{scheme}:", f"{scheme[:-1]}:")
        assert_one_line(infer(plain, *arguments[1:]), "closed the connection", f"write {url} if it speaks TLS")
        assert_one_line(infer(*arguments, "--cert", tmp_path / "me.cert"), "--cert: ", "key")
        assert_one_line(infer(*arguments, "--key", tmp_path / "me.key"), "--key", "--cert")


# --- tensors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("protocol", "api"),
    [("http", "kserve"), ("http", "kserve-json"), ("grpc", "kserve"), ("http", "auto"), ("grpc", "auto")],
)
def test_inputs_and_outputs(request: pytest.FixtureRequest, tmp_path: Path, protocol: str, api: str) -> None:
    kserve = request.getfixturevalue(f"kserve_{protocol}")
    np.save(tmp_path / "a.npy", np.array([1, 2, 3, 4], np.int32))
    tree = in_json(
        kserve, "--api", api, "--model", "pair", "--input", f"A=@{tmp_path}/a.npy", "--input", "B=10,20,30,40",
        "--save", tmp_path / "out.npz",
    )  # fmt: skip
    (response,) = tree["responses"]
    assert response["outputs"] == [{"name": "SUM", "datatype": "INT32", "shape": [1, 4], "data": [11, 22, 33, 44]}]
    assert (tree["model"], tree["version"]) == ("pair", "1")
    assert np.load(tmp_path / "out.npz")["SUM"].tolist() == [[11, 22, 33, 44]]


def test_without_inputs_they_are_generated(kserve: str) -> None:
    tree = in_json(kserve, "--model", "pair")
    assert [one["source"] for one in tree["inputs"]] == ["random", "random"]
    zeros = in_json(kserve, "--model", "pair", "--fill", "zeros", "--shape", "A=2,4", "--shape", "B=2,4")
    assert zeros["responses"][0]["outputs"][0]["data"] == [0] * 8


def test_an_image_gets_its_classes_with_the_servers_labels(kserve: str, picture: str) -> None:
    result = infer(kserve, "--model", "scores", "--image", picture)
    assert result.status == 0, result
    assert "flat.png, 5×4 RGB to 2×2 RGB, NCHW, scaling inception" in result.out
    lines = [line.split() for line in result.out.splitlines()]
    index = next(n for n, words in enumerate(lines) if "classes:" in words)
    assert [words[1:] for words in lines[index + 1 : index + 4]] == [["0", "anchor"], ["1", "barge"], ["2", "canoe"]]
    assert lines[index + 1][0] == "1"
    tree = in_json(kserve, "--model", "scores", "--image", picture, "--classes", "2", "--scaling", "none")
    best = tree["responses"][0]["classes"]["SCORES"][0]
    assert best == [{"score": 255, "index": 0, "label": "anchor"}, {"score": 128, "index": 1, "label": "barge"}]


def test_classes_are_found_by_the_client_if_not_by_the_server(tmp_path: Path, picture: str) -> None:
    (tmp_path / "labels").write_text("one\ntwo\nthree\n")
    with scripted(kserve_peers.over_http(classifies=False)) as url:
        arguments = (url, "--model", "scores", "--image", picture, "--scaling", "vgg")
        plain = in_json(*arguments)["responses"][0]
        named = in_json(*arguments, "--labels", tmp_path / "labels")["responses"][0]
        values = in_json(*arguments, "--classes", "0")["responses"][0]
    assert [one["data"] for one in plain["outputs"]] == [[132, 11, -104]]
    assert [(one["index"], one["label"]) for one in plain["classes"]["SCORES"][0]] == [(0, ""), (1, ""), (2, "")]
    assert [one["label"] for one in named["classes"]["SCORES"][0]] == ["one", "two", "three"]
    assert "classes" not in values


def test_a_decoupled_model_is_streamed_and_all_responses_are_shown(kserve_grpc: str) -> None:
    result = infer(kserve_grpc, "--model", "many", "--input", "N=3")
    assert result.status == 0, result
    assert "KServe v2 over gRPC, streamed" in result.out
    assert [line.split()[-1] for line in result.out.splitlines() if "SQUARE" in line] == ["[0]", "[1]", "[4]"]
    assert "no responses" in infer(kserve_grpc, "--model", "many", "--input", "0").out


def test_a_stream_that_fails_shows_the_responses_before(kserve_grpc: str) -> None:
    result = infer(kserve_grpc, "--model", "many", "--input", "2", "--parameter", "fail=true")
    assert result.status == 2
    assert result.out.count("SQUARE") == 2
    assert "told to fail" in result.err and len(result.err.splitlines()) == 2


def test_the_servers_own_time_by_its_header_trailer_or_statistics(kserve_grpc: str) -> None:
    def server_times(url: str, *more: str) -> dict[str, Any]:
        found: dict[str, Any] = in_json(url, "--model", "pair", "--fill", "zeros", *more)["timing"]["server"]
        return found

    with scripted(kserve_peers.over_http(timing=True)) as by_header:
        header = server_times(by_header)
    trailer = server_times(kserve_grpc)
    for found in (header, trailer):
        assert (found["queue"], found["compute"], found["source"]) == (0.00025, 0.0015, "its server-timing")
    with scripted(kserve_peers.over_http(statistics=True)) as by_statistics:
        found = server_times(by_statistics)
    assert (found["queue"], found["compute"], found["source"]) == (0.0001, 0.0003, "its statistics")
    named = ("--timing", "queue=wait_us", "--timing", "compute=busy ms")
    with scripted(kserve_peers.over_http(timing=True)) as by_header:
        for url in (by_header, kserve_grpc):
            found = server_times(url, *named)
            assert (found["queue"], found["compute"]) == (0.0004, 0.0025), "what is named comes before Server-Timing"
    assert_one_line(infer(kserve_grpc, "--timing", "comput=x"), "comput: unknown key", "compute?")
    with scripted(kserve_peers.over_http()) as silent:
        assert "server" not in in_json(silent, "--model", "pair", "--fill", "zeros")["timing"]


def test_metadata_and_deadline_reach_a_grpc_server() -> None:
    seen: dict[str, Any] = {}
    with kserve_peers.over_grpc(seen) as url:
        result = infer(url, "--model", "pair", "--header", "X-Own: 5", "--deadline", "20s")
    assert result.status == 0, result
    assert seen["metadata"]["x-own"] == "5"
    assert 0 < seen["left"] <= 20


# --- any gRPC method -------------------------------------------------------------------------------------------------

PROTO = """
syntax = "proto3";
package shop;
message Order { string name = 1; int32 count = 2; }
message Greeting { string text = 1; }
service Till {
  rpc One(Order) returns (Greeting);
  rpc Many(Order) returns (stream Greeting);
  rpc Sum(stream Order) returns (Greeting);
}
"""


@pytest.fixture(scope="module")
def till(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """A grpcio server with a custom service and reflection: its URL and its .proto file."""
    path = tmp_path_factory.mktemp("proto") / "shop.proto"
    path.write_text(PROTO)
    described = protobuf.compile(path)
    schema = protobuf.load(described)
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(described).file:
        pool.AddSerializedFile(file.SerializeToString())

    def one(request: Any, context: Any) -> Any:
        if request.name == "missing":
            context.abort(grpc.StatusCode.NOT_FOUND, "name not found: «näh»")
        return {"text": f"hello {request.name}"}

    def many(request: Any, context: Any) -> Any:
        yield from ({"text": f"{request.name} {n}"} for n in range(request.count))

    def total(requests: Any, context: Any) -> Any:
        return {"text": str(sum(request.count for request in requests))}

    def handler(name: str, kind: Callable[..., Any], behave: Any) -> tuple[str, Any]:
        method = schema.method(f"shop.Till/{name}")
        return name, kind(
            behave,
            request_deserializer=method.input.FromString,
            response_serializer=lambda tree: protobuf.encode(method.output, tree),
        )

    server = grpc.server(futures.ThreadPoolExecutor(4))
    handlers = [
        handler("One", grpc.unary_unary_rpc_method_handler, one),
        handler("Many", grpc.unary_stream_rpc_method_handler, many),
        handler("Sum", grpc.stream_unary_rpc_method_handler, total),
    ]
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("shop.Till", dict(handlers)),))
    reflection.enable_server_reflection(("shop.Till", reflection.SERVICE_NAME), server, pool=pool)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"grpc://127.0.0.1:{port}", str(path)
    server.stop(0).wait()


@pytest.mark.parametrize("by_reflection", [True, False])
@pytest.mark.parametrize(
    ("method", "data", "expected"),
    [
        ("shop.Till/One", '{"name": "Ada"}', [{"text": "hello Ada"}]),
        ("shop.Till.One", "{}", [{"text": "hello "}]),
        ("shop.Till/Many", '{"name": "n", "count": 3}', [{"text": f"n {n}"} for n in range(3)]),
        ("shop.Till/Sum", '[{"count": 1}, {"count": 41}]', [{"text": "42"}]),
    ],
)
def test_any_method_with_json(
    till: tuple[str, str], by_reflection: bool, method: str, data: str, expected: list[Any]
) -> None:
    url, proto = till
    more = () if by_reflection else ("--proto", proto)
    tree = in_json(url, "--method", method, "--data", data, *more)
    assert [one["message"] for one in tree["messages"]] == expected


def test_a_methods_response_and_its_request_from_a_file(till: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / "order.json").write_text('{"name": "Bo"}')
    result = infer(till[0], "--method", "shop.Till/One", "--data", f"@{tmp_path}/order.json")
    assert ' {\n   "text": "hello Bo"\n }\n' in result.out
    assert f" {till[0]} · shop.Till/One · gRPC\n" in result.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--method", "shop.Till/Ones"), ("there is no method", "did you mean shop.Till/One")),
        (("--method", "shop.Till/One", "--data", '{"nam": 1}'), ("no field 'nam'",)),
        (("--method", "shop.Till/One", "--data", "{"), ("--data is not JSON",)),
        (("--method", "shop.Till/One", "--data", "[{}, {}]"), ("has 2 messages", "takes one")),
        (("--method", "shop.Till/One", "--data", "@/nowhere"), ("/nowhere",)),
        (("--method", "shop.Till/One", "--proto", "/nowhere.proto"), ("/nowhere.proto",)),
        (("--method", "shop.Till/One", "--data", '{"name": "missing"}'), ("name not found: «näh» (NOT_FOUND)",)),
        (("--method", "shop.Till/One", "--prompt", "x"), ("--prompt does not go with the API grpc",)),
    ],
)
def test_wrong_calls_are_one_line(till: tuple[str, str], arguments: tuple[str, ...], words: tuple[str, ...]) -> None:
    assert_one_line(infer(till[0], *arguments), *words)


# --- what is wrong ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--model", "pear"), ("pear", "did you mean pair?", "the server has many, pair, scores")),
        (("--model", "pair", "--input", "A=1,2,3,4"), ("the model also takes B (INT32 [-1, 4])",)),
        (("--model", "pair", "--input", "1,2,3,4"), ("does not name an input, and the model has 2",)),
        (("--model", "pair", "--input", "A=1,2", "--input", "B=1"), ("expects the shape [-1, 4]; 2 elements",)),
        (("--model", "pair", "--input", "A=a,b", "--input", "B=1"), ("expects INT32; 'a,b' was given",)),
        (("--model", "pair", "--input", "C=1"), ("no input 'C'", "A (INT32 [-1, 4])")),
        (("--model", "pair", "--tensor", "NO"), ("no output 'NO'", "SUM")),
        (("--model", "pair", "--image", "x.png"), ("which one the image is for",)),
        (("--model", "scores", "--image", "/nowhere"), ("/nowhere", "No such file")),
        (("--model", "scores", "--image", __file__), ("is not an image",)),
        (("--model", "pair", "--parameter", "fail=true"), ("told to fail",)),
        (("--model", "pair", "--labels", "/nowhere"), ("/nowhere",)),
        (("--model", "pair", "--prompt", "x", "--api", "kserve"), ("--prompt",)),
        (("--model", "pair", "--fill", "zeros", "--save", "/nowhere/x.npz"), ("/nowhere/x.npz",)),
        (("--model", "pair", "--fill", "zeros", "--json", "/nowhere/x"), ("/nowhere/x",)),
    ],
)
def test_wrong_requests_are_one_line(kserve: str, arguments: tuple[str, ...], words: tuple[str, ...]) -> None:
    assert_one_line(infer(kserve, "--api", "kserve", *arguments), *words)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("http://127.0.0.1:1", "--prompt", "x"), ("connection refused", "start the server")),
        (("grpc://127.0.0.1:1",), ("connection refused", "start the server")),
        (("http://127.0.0.1:1",), ("nothing to send", "--prompt")),
        (("grpc://127.0.0.1:1", "--prompt", "x"), ("prompts are sent over HTTP",)),
        (("grpc://127.0.0.1:1", "--api", "chat", "--prompt", "x"), ("--api: chat is not available over gRPC",)),
        (("http://127.0.0.1:1", "--method", "a.B/C"), ("grpc needs a grpc:// URL",)),
        (("http://127.0.0.1:1", "--prompt", "x", "--deadline", "1s"), ("--deadline needs a grpc:// URL", "--timeout")),
        (("http://127.0.0.1:1", "--prompt", "x", "--timeout", "soon"), ("--timeout: expected a duration",)),
        (("http://127.0.0.1:1", "--prompt", "x", "--header", "X"), ("NAME:VALUE",)),
        (("http://127.0.0.1:1", "--prompt", "x", "--parameter", "X"), ("NAME=VALUE",)),
        (("http://127.0.0.1:1", "--prompt", "x", "--api-key-env", "NOT_SET_ANYWHERE"), ("NOT_SET_ANYWHERE",)),
        (("https://127.0.0.1:1", "--prompt", "x", "--ca", "/nowhere"), ("--ca: /nowhere",)),
        (("http://127.0.0.1:1", "--api", "kserve", "--stream"), ("cannot be streamed over HTTP", "--api generate")),
        (("grpc://127.0.0.1:1", "--scaling", "vgg"), ("--scaling needs --image",)),
        (("ftp://127.0.0.1", "--prompt", "x"), ("scheme",)),
        (("127.0.0.1:1", "--prompt", "x"), ("connection refused", "start the server")),
    ],
)  # fmt: skip
def test_wrong_command_lines_are_one_line(arguments: tuple[str, ...], words: tuple[str, ...]) -> None:
    result = infer(*arguments)
    assert_one_line(result, *words)
    assert "server." not in result.err


def test_a_server_that_reads_no_binary_tensors_gets_json() -> None:
    with scripted(kserve_peers.over_http(name="mlserver")) as url:
        found = infer(url, "--model", "pair", "--input", "A=1,2,3,4", "--input", "B=1,1,1,1", "--api", "kserve")
        assert found.status == 0 and "HTTP, JSON" in found.out and "[[2 3 4 5]]" in found.out, found
        section = ("--set", "server.api=kserve", "--model", "pair", "--requests", "5", "--set", "client.processes=0")
        assert "kserve-json" in cli("run", url, *section).out
        compared = cli("compare-protocols", url, "--model", "pair", "--requests", "5", "--quiet").out
        assert "HTTP binary was not measured" in compared and "HTTP JSON" in compared
        with inferometer.Client(url) as client:
            added = client.infer("pair", dict.fromkeys("AB", np.ones((1, 4), np.int32)))
        assert added["SUM"].tolist() == [[2, 2, 2, 2]]


def test_a_decoupled_model_over_http_or_without_a_stream(kserve_http: str, kserve_grpc: str) -> None:
    assert_one_line(infer(kserve_http, "--model", "many", "--input", "3"), "decoupled", "grpc://")
    assert_one_line(infer(kserve_grpc, "--model", "many", "--no-stream"), "decoupled", "leave --no-stream out")


@pytest.mark.torch
def test_the_classifier_without_an_input_and_without_a_key() -> None:
    with serving(Settings(models=("classifier",), http=0, grpc=0, token="geheim")) as server:
        assert server.grpc is not None
        for url in (server.url, server.grpc):
            refused = infer(url, "--api", "kserve", "--model", "classifier")
            assert_one_line(refused, "the bearer token is missing", "--api-key-env or --api-key-file")
            result = infer(url, "--api", "kserve", "--header", "Authorization: Bearer geheim", "--model", "classifier")
            assert result.status == 0 and "is visible in the list of processes" in result.err, result
            assert "pixels" in result.out and "image" not in result.out
        result = infer(server.grpc, "--method", "inference.GRPCInferenceService/ModelReady")
        assert_one_line(result, "reflection", "--api-key-env")


def test_a_text_behind_a_port_that_speaks_tls() -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    with scripted(polite, context) as url:
        result = infer(url.replace("https", "http"), "--prompt", "x", "--model", "m")
    assert_one_line(result, "no response", f"write {url} if it speaks TLS")


def test_a_deadline_that_passed_on_the_server(kserve_grpc: str) -> None:
    result = infer(kserve_grpc, "--model", "pair", "--deadline", "10s", "--parameter", "late=true")
    assert_one_line(result, "too late (DEADLINE_EXCEEDED)", "raise --deadline")


def test_waiting_ends_with_the_timeout() -> None:
    def script(client: Client) -> None:
        client.request()
        client.request()

    with scripted(script) as url:
        result = infer(url, "--prompt", "x", "--model", "m", "--timeout", "100ms")
    assert_one_line(result, "did not respond within 100 ms", "--timeout")


def test_an_http_server_behind_grpc_and_the_other_way_round(
    kserve_http: str, kserve_grpc: str, till: tuple[str, str]
) -> None:
    swapped = kserve_grpc.replace("grpc", "http")
    assert_one_line(infer(swapped, "--prompt", "x", "--model", "m"), "speaks HTTP/2", f"write {kserve_grpc}")
    assert_one_line(infer(swapped, "--api", "kserve"), "speaks HTTP/2", f"write {kserve_grpc}")
    wrong = kserve_http.replace("http", "grpc")
    assert_one_line(infer(wrong), wrong)
    assert_one_line(infer(wrong, "--method", "shop.Till/One", "--proto", till[1]), wrong, kserve_http)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"HTTP/1.1 401 No\r\nContent-Length: 2\r\n\r\nno", ("no (401)", "--api-key-env")),
        (b"HTTP/1.1 503 No\r\nContent-Length: 9\r\n\r\nnot ready", ("not ready (503)", "server's log")),
        (b"HTTP/1.1 404 No\r\nContent-Length: 9\r\n\r\nNot Found", ("Not Found (404)", "--api")),
        (b"SSH-2.0-OpenSSH_9\r\n", ("not HTTP/1.1",)),
        (b"", ("no response",)),
        (http_response(b"<html>hello"), ("a web page: hello", "next: this is a web page, not a model server")),
        (http_response(b'{"choices": [{"message": {"content": "x"}}]}'), ("--no-stream",)),
        (http_response(b'{"error": {"message": "out of it"}}'), ("out of it",)),
    ],
    ids=["401", "503", "404", "ssh", "silent", "html", "not streamed", "error"],
)  # fmt: skip
def test_invalid_responses_are_one_line(data: bytes, words: tuple[str, ...]) -> None:
    def script(client: Client) -> None:
        client.request()
        client.send(data)

    with scripted(script) as url:
        assert_one_line(infer(url, "--prompt", "x", "--model", "m"), *words)


def test_a_model_that_the_server_does_not_have_is_answered_with_those_it_lists(sim: str) -> None:
    result = infer(sim, "--prompt", "x", "--model", "gpt-4")
    assert_one_line(result, "'gpt-4' does not exist", "next: the server lists sim: name one of its models with --model")


def test_a_key_is_sent_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "sk-geheim-1234567890")

    def script(client: Client) -> None:
        request = client.request()
        if request is None:
            return
        text = json.dumps({"error": {"message": f"refused: {request[1]['authorization']}"}}).encode()
        client.send(b"HTTP/1.1 403 No\r\nContent-Length: %d\r\n\r\n%b" % (len(text), text))

    with scripted(script) as url:
        result = infer(url, "--prompt", "x", "--model", "m", "--api-key-env", "SOME_KEY")
    assert_one_line(result, "refused: Bearer (removed) (403)")


def test_help_teaches_by_example() -> None:
    result = infer("--help")
    for word in ("--prompt", "--image shapes.jpg", "--input A=@a.npy", "--method pkg.Svc/Do", "Exit status"):
        assert word in result.out
    assert max(map(len, result.out.splitlines())) <= 100


# --- advice in this command's own words ------------------------------------------------------------------------------


def test_an_unknown_scheme_is_an_error_before_anything_else() -> None:
    result = infer("ftp://127.0.0.1:8001", "--model", "m")
    assert_one_line(result, "URL: 'ftp://127.0.0.1:8001' does not start with a known scheme", "grpc://HOST:PORT")


def test_a_url_without_a_scheme_is_tried_as_http_and_as_grpc(sim: str, kserve_grpc: str) -> None:
    text = in_json(sim.removeprefix("http://"), "--prompt", "Hello", "--max-tokens", "2")
    assert (text["url"], text["api"]) == (sim, "chat completions, streamed")
    tensors = in_json(kserve_grpc.removeprefix("grpc://"), "--model", "pair")
    assert (tensors["url"], tensors["api"]) == (kserve_grpc, "KServe v2 over gRPC")


def test_a_file_that_is_not_a_descriptor_set_is_named(till: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text("print('hello')\n")
    result = infer(till[0], "--method", "shop.Till/One", "--proto", tmp_path / "server.py")
    assert_one_line(result, f"--proto: {tmp_path}/server.py is not a descriptor set", "give a .proto file")


def test_an_encoded_message_from_a_file_is_sent_unchanged(till: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / "order.bin").write_bytes(b"\x0a\x03Ada")
    (tmp_path / "broken.bin").write_bytes(b"\x0a\x09Ada")
    tree = in_json(till[0], "--method", "shop.Till/One", "--data", f"@{tmp_path}/order.bin")
    assert [one["message"] for one in tree["messages"]] == [{"text": "hello Ada"}]
    result = infer(till[0], "--method", "shop.Till/One", "--data", f"@{tmp_path}/broken.bin")
    assert_one_line(result, "5 bytes are not a valid shop.Order")


def test_a_grpc_service_that_is_not_kserve_leads_to_the_method_flag(till: tuple[str, str]) -> None:
    assert_one_line(infer(till[0], "--model", "foo"), "it is not a KServe v2 server", "--api grpc and --method")


@pytest.fixture(scope="module")
def identity() -> Iterator[dict[str, str]]:
    """Our own server's identity model: its URLs."""
    with serving(Settings(models=("identity",), http=0, grpc=0)) as server:
        assert server.grpc is not None
        yield {"http": server.url, "grpc": server.grpc}


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_missing_version_names_the_flag(identity: dict[str, str], protocol: str) -> None:
    result = infer(identity[protocol], "--api", "kserve", "--model", "identity", "--version", "9")
    assert_one_line(result, "check --version: the server has 1")


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_shape_that_is_too_large_is_one_line(identity: dict[str, str], protocol: str) -> None:
    result = infer(identity[protocol], "--model", "identity", "--shape", "1,99999999999999")
    assert_one_line(result, "--shape: INPUT0: FP32 [1, 99999999999999] is 364 TiB", "use a smaller shape")


@pytest.mark.parametrize(
    ("protocol", "shared", "limit"),
    [
        ("http", "false", "building the request needs about"),
        ("grpc", "false", "a gRPC message holds at most 2 GiB"),
        ("grpc", "true", "building the request needs about"),
    ],
)
def test_a_shape_that_is_too_large_for_a_run_is_one_line(
    identity: dict[str, str], tmp_path: Path, protocol: str, shared: str, limit: str
) -> None:
    given = ["server.api=kserve", "data.shape={INPUT0: [1, 99999999999999]}", f"server.shared_memory={shared}"]
    settings = [word for one in [*given, f"output={tmp_path}/runs"] for word in ("--set", one)]
    result = cli("run", identity[protocol], "--model", "identity", "--requests", "1", "-q", *settings)
    assert_one_line(result, f"data.shape: INPUT0: FP32 [1, 99999999999999] is 364 TiB; {limit}", "use a smaller shape")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_compressed_responses_are_decoded(identity: dict[str, str], encoding: str) -> None:
    zeros = ("--model", "identity", "--fill", "zeros", "--shape", "1,10000")
    plain = in_json(identity["http"], *zeros)
    packed = in_json(identity["http"], *zeros, "--header", f"accept-encoding: {encoding}")
    assert packed["responses"][0]["outputs"] == plain["responses"][0]["outputs"]
    assert plain["timing"]["bytes_in"] > 40_000
    assert packed["timing"]["bytes_in"] < 2_000
