"""`inferometer infer` against a real Triton: images and labels, tensors, decoupled models, generate, and refusals.

The expected values are what tritonclient gets for the same inputs (the oracle of triton_server.py).
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import Result, assert_one_line, cli
from PIL import Image
from triton_server import Oracle, Triton, join_bytes, tensor, values

from inferometer.tensors import DATATYPES

pytestmark = [pytest.mark.triton, pytest.mark.usefixtures("patient")]
pytest_plugins = ["triton_server"]

LABELS = ["anchor", "barge", "canoe", "dinghy", "ferry", "gondola", "hull", "island", "jetty", "kayak"]


@pytest.fixture(params=["http", "grpc"])
def url(request: pytest.FixtureRequest, triton: Triton) -> str:
    return triton.http if request.param == "http" else triton.grpc


def infer(*arguments: str | Path) -> Result:
    return cli("infer", *arguments)


def in_json(*arguments: str | Path) -> Any:
    result = infer(*arguments, "--json", "-")
    assert result.status == 0, result
    return json.loads(result.out)


def data(tree: Any) -> dict[str, Any]:
    (response,) = tree["responses"]
    return {one["name"]: one["data"] for one in response["outputs"]}


# --- images ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def picture(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Any]:
    """An 8 by 8 image, which needs no resizing, and the expected input of the model: channels first, -1 to 1."""
    pixels = np.random.default_rng(7).integers(0, 256, (8, 8, 3), np.uint8)
    path = tmp_path_factory.mktemp("images") / "noise.png"
    Image.fromarray(pixels).save(path)
    return str(path), (pixels.astype(np.float32) / np.float32(127.5) - np.float32(1)).transpose(2, 0, 1)[None]


def test_an_image_gets_the_labels_that_tritonclient_gets(
    triton: Triton, oracle: Oracle, url: str, picture: tuple[str, Any]
) -> None:
    path, array = picture
    given = tensor("IMAGE", "FP32", array.shape, np.ascontiguousarray(array).tobytes())
    truth = oracle(url, model="classifier", inputs=[given], outputs=["SCORES"], classes=3)
    wanted = [line.decode().split(":") for line in values(truth, "SCORES")]
    (best,) = in_json(url, "--model", "classifier", "--image", path, "--classes", "3")["responses"][0]["classes"][
        "SCORES"
    ]
    assert [[f"{one['score']:.6f}", str(one["index"]), one["label"]] for one in best] == wanted
    assert {one["label"] for one in best} <= set(LABELS)


def test_scores_with_a_label_file(oracle: Oracle, url: str, picture: tuple[str, Any], tmp_path: Path) -> None:
    path, array = picture
    (tmp_path / "labels").write_text("\n".join(f"class {n}" for n in range(10)))
    tree = in_json(
        url, "--model", "classifier", "--image", path, "--labels", tmp_path / "labels", "--save", tmp_path / "o.npz"
    )
    given = tensor("IMAGE", "FP32", array.shape, np.ascontiguousarray(array).tobytes())
    scores = values(oracle(url, model="classifier", inputs=[given], outputs=["SCORES"]), "SCORES")
    assert np.load(tmp_path / "o.npz")["SCORES"].reshape(-1).tolist() == scores
    (best,) = tree["responses"][0]["classes"]["SCORES"]
    order = sorted(range(10), key=lambda n: -scores[n])[:5]
    assert [(one["index"], one["label"]) for one in best] == [(n, f"class {n}") for n in order]


def test_printed_output(url: str, picture: tuple[str, Any]) -> None:
    result = infer(url, "--model", "classifier", "--image", picture[0])
    assert result.status == 0, result
    assert "noise.png, 8×8 RGB to 8×8 RGB, NCHW, scaling inception" in result.out
    assert sum(label in result.out for label in LABELS) == 5
    assert "by its statistics" in result.out
    assert max(map(len, result.out.splitlines())) <= 100


# --- tensors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("api", ["kserve", "kserve-json"])
def test_add_sub(triton: Triton, tmp_path: Path, api: str) -> None:
    np.save(tmp_path / "a.npy", np.arange(16, dtype=np.int32))
    ones = ",".join(["1"] * 16)
    arguments = (
        "--api",
        api,
        "--model",
        "add_sub",
        "--input",
        f"INPUT0=@{tmp_path}/a.npy",
        "--input",
        f"INPUT1={ones}",
    )
    found = data(in_json(triton.http, *arguments))
    assert found == {"OUTPUT0": list(range(1, 17)), "OUTPUT1": list(range(-1, 15))}
    assert list(data(in_json(triton.http, *arguments, "--output", "OUTPUT1"))) == ["OUTPUT1"]


def test_generated_inputs_of_all_types_are_returned_unchanged(url: str, tmp_path: Path) -> None:
    shapes = [
        word for kind in DATATYPES for word in ("--shape", f"IN_{kind}=2")
    ]  # or only one of them, since all are optional
    tree = in_json(url, "--api", "kserve", "--model", "all_types", *shapes)
    types = {one["datatype"] for one in tree["inputs"]}
    assert len(types) == 14
    assert {one["datatype"] for one in tree["responses"][0]["outputs"]} == types
    (tmp_path / "file").write_bytes(b"\x00\xff raw")
    given = ("--input", f"IN_BYTES=@{tmp_path}/file", "--input", "IN_FP16=0.5,-2", "--input", "IN_BOOL=true,false")
    found = data(
        in_json(
            url, "--model", "all_types", *given, "--output", "OUT_FP16", "--output", "OUT_BYTES", "--output", "OUT_BOOL"
        )
    )
    assert found == {"OUT_FP16": [0.5, -2], "OUT_BYTES": [{"b64": "AP8gcmF3"}], "OUT_BOOL": [True, False]}


def test_a_megabyte_in_each_direction(url: str, tmp_path: Path) -> None:
    array = np.random.default_rng(3).random((1, 300_000), np.float32)
    np.save(tmp_path / "a.npy", array)
    result = infer(url, "--model", "identity", "--input", f"@{tmp_path}/a.npy", "--save", tmp_path / "o.npz")
    assert result.status == 0, result
    assert (np.load(tmp_path / "o.npz")["OUTPUT0"] == array).all()
    assert "..." in result.out and "1.14 MiB" in result.out


def test_the_servers_time_is_a_part_of_the_total(url: str) -> None:
    timing = in_json(url, "--model", "slow", "--input", "50")["timing"]
    assert timing["server"]["source"] == "its statistics"
    assert timing["server"]["compute"] >= 0.05
    assert timing["send"] + timing["wait"] >= 0.05  # the client may lose its core between the two
    parts = sum(timing[name] for name in ("connect", "send", "wait", "receive"))
    assert parts == pytest.approx(timing["total"])


def test_a_sequence_with_parameters(url: str) -> None:
    def add(number: int, **flags: object) -> list[int]:
        more = [part for name, value in flags.items() for part in ("--parameter", f"{name}={json.dumps(value)}")]
        tree = in_json(url, "--model", "sequence", "--input", str(number), "--output", "SUM", *more)
        return list(data(tree)["SUM"])

    assert add(10, sequence_id=991, sequence_start=True) == [10]
    assert add(5, sequence_id=991, sequence_end=True) == [15]


# --- any number of responses -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 5])
def test_square_is_streamed_automatically(triton: Triton, count: int) -> None:
    tree = in_json(triton.grpc, "--model", "square", "--input", f"N={count}")
    assert tree["api"] == "KServe v2 over gRPC, streamed"
    assert [response["outputs"][0]["data"] for response in tree["responses"]] == [[n * n] for n in range(count)]
    assert [one["at"] for one in tree["responses"]] == sorted(one["at"] for one in tree["responses"])
    assert not tree["timing"].get("server"), "a decoupled model's sums are not those of its responses"


def test_generate_streams_text(triton: Triton) -> None:
    result = infer(
        triton.http, "--api", "generate", "--model", "generator", "--prompt", "dego mika", "--max-tokens", "3"
    )
    assert result.out.startswith(" dego mika dego\n\n"), result
    assert "3 out  one per chunk" in result.out
    whole = ("--no-stream", "--max-tokens", "1", "--json", "-")
    once = json.loads(infer(triton.http, "--api", "generate", "--model", "generator", "--prompt", "dego", *whole).out)
    assert (once["text"], once["tokens"]["ttft"]) == (" dego", None)


def test_generator_as_tensors(triton: Triton, oracle: Oracle) -> None:
    tree = in_json(triton.grpc, "--model", "generator", "--input", "text_input=la", "--input", "max_tokens=2")
    assert [one["outputs"][0]["data"] for one in tree["responses"]] == [[" la"], [" la"]]
    given = tensor("text_input", "BYTES", [1], join_bytes([b"la"]))
    two = tensor("max_tokens", "INT32", [1], np.array([2], "<i4").tobytes())
    truth = oracle(triton.grpc, model="generator", stream=True, inputs=[given, two])
    assert len(truth["responses"]) == len(tree["responses"])


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--model", "nosuch"), ("unknown model", "the server has add_sub, all_types, classifier")),
        (("--model", "add_sub", "--input", "INPUT0=1"), ("expects the shape [-1, 16]; 1 elements",)),
        (("--model", "failing", "--input", "INTERNAL"), ("told to fail with INTERNAL",)),
        (("--model", "no_batch", "--version", "9"), ("no_batch", "9")),
        (("--model", "square", "--no-stream", "--input", "1"), ("decoupled",)),
    ],
)
def test_errors_are_one_line(url: str, arguments: tuple[str, ...], words: tuple[str, ...]) -> None:
    assert_one_line(infer(url, "--api", "kserve", *arguments), *words)


def test_a_passed_deadline(triton: Triton) -> None:
    result = infer(triton.grpc, "--model", "slow", "--input", "400", "--deadline", "50ms")
    assert_one_line(result, "DEADLINE_EXCEEDED", "raise --deadline")


def test_swapped_ports(triton: Triton) -> None:
    http, grpc = triton.http.replace("http", "grpc"), triton.grpc.replace("grpc", "http")
    assert_one_line(infer(http), http)
    assert_one_line(infer(grpc, "--api", "kserve"), "speaks HTTP/2", f"write {triton.grpc}")


def test_errors_after_some_responses(triton: Triton) -> None:
    grpc = infer(triton.grpc, "--model", "generator", "--input", "text_input=a", "--input", "fail_after=2")
    assert (grpc.status, grpc.out.count("text_output")) == (2, 2)
    http = infer(
        triton.http, "--api", "generate", "--model", "generator", "--prompt", "a", "--parameter", "fail_after=2"
    )
    assert (http.status, http.out) == (2, " a a\n")
    assert all("failed after 2 tokens" in result.err for result in (grpc, http))
