"""How each server engine is started: its command, URL, environment and facts; and errors that name what to install."""

import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from inferometer.config.engines import EngineSpec, campaign_from, variants
from inferometer.engines import milestones
from inferometer.engines.catalog import SERVERS, server_engine
from inferometer.engines.launching import EngineError, Launch, Start

PORT = 8123
SCRIPTS = Path(__file__).parents[2] / "src/inferometer/engines/servers/scripts"


def launch(folder: Path, model: str = "org/model", profiled: bool = False, **entry: Any) -> Launch:
    spec = msgspec.convert({"name": "it"} | entry, EngineSpec)
    return server_engine(spec).launch(Start(spec, model, PORT, folder, profiled))


def program(folder: Path, name: str) -> str:
    path = folder / "bin" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return str(path)


def python_with(folder: Path, *packages: str) -> str:
    """A Python interpreter whose only packages are empty ones of these names."""
    for package in packages:
        (folder / "packages" / package).mkdir(parents=True)
        (folder / "packages" / package / "__init__.py").touch()
    path = Path(program(folder, "python"))
    path.write_text(f'#!/bin/sh\nPYTHONPATH={folder}/packages exec {sys.executable} -S "$@"\n')
    return str(path)


def words(found: Launch) -> str:
    assert not isinstance(found.command, str)
    return " ".join(found.command)


# --- vLLM ----------------------------------------------------------------------------------------------------------------


def test_vllm_gets_the_model_the_address_and_the_flags(tmp_path: Path) -> None:
    vllm = program(tmp_path, "vllm")
    args = {"max_num_seqs": 32, "enforce-eager": True, "enable-prefix-caching": False, "max-model-len": 4096}
    found = launch(tmp_path, type="vllm", executable=vllm, dtype="bfloat16", device="cuda:1", args=args)
    assert words(found) == (
        f"{vllm} serve org/model --host 127.0.0.1 --port {PORT} --dtype bfloat16 --max-num-seqs 32 --enforce-eager --max-model-len 4096"
    )
    assert (found.url, found.ready) == (f"http://127.0.0.1:{PORT}", "/health")
    assert found.env["CUDA_VISIBLE_DEVICES"] == "1"
    assert found.server == {"model": "org/model"}
    assert found.facts["dtype"] == "bfloat16" and found.facts["max length"] == "4096"
    assert found.version == (vllm, "--version")


def test_vllm_can_reset_its_prefix_cache_which_needs_the_development_mode(tmp_path: Path) -> None:
    found = launch(tmp_path, type="vllm", executable=program(tmp_path, "vllm"))
    assert found.reset_cache == "/reset_prefix_cache" and found.env["VLLM_SERVER_DEV_MODE"] == "1"


def test_vllm_is_started_with_its_profiler_only_when_a_level_is_profiled(tmp_path: Path) -> None:
    vllm = program(tmp_path, "vllm")
    plain = launch(tmp_path, type="vllm", executable=vllm)
    profiled = launch(tmp_path, profiled=True, type="vllm", executable=vllm)
    assert plain.profiler == ("", "") and "--profiler-config" not in plain.command
    assert profiled.profiler == ("/start_profile", "/stop_profile")
    config = profiled.command[profiled.command.index("--profiler-config") + 1]
    assert msgspec.json.decode(config) == {"profiler": "torch", "torch_profiler_dir": str(tmp_path / "profile")}


def test_vllm_passes_mappings_as_json_and_reports_speculation(tmp_path: Path) -> None:
    args = {"speculative-config": {"method": "ngram", "num_speculative_tokens": 4}, "served-model-name": "short"}
    found = launch(tmp_path, type="vllm", executable=program(tmp_path, "vllm"), args=args)
    assert '{"method":"ngram","num_speculative_tokens":4}' in found.command
    assert "ngram" in found.facts["speculation"]
    assert found.server == {"model": "short"}


def test_a_folder_of_this_machine_becomes_an_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path)
    found = launch(tmp_path, "model", type="vllm", executable=program(tmp_path, "vllm"))
    assert found.command[2] == str(tmp_path / "model") == found.server["model"]


def test_each_combination_of_flags_is_a_launch_of_its_own(tmp_path: Path) -> None:
    args = {"max-num-seqs": [32, 64], "enforce-eager": [True, False]}
    entry = {"type": "vllm", "executable": program(tmp_path, "vllm"), "args": args}
    specs = variants(campaign_from({"model": "org/model", "engines": [entry]}))
    found = [server_engine(spec).launch(Start(spec, "org/model", PORT, tmp_path)) for spec in specs]
    assert [words(each).partition(f"--port {PORT} ")[2] for each in found] == [
        "--max-num-seqs 32 --enforce-eager",
        "--max-num-seqs 32",
        "--max-num-seqs 64 --enforce-eager",
        "--max-num-seqs 64",
    ]


# --- transformers -----------------------------------------------------------------------------------------------------------


def test_transformers_serves_plain_or_with_continuous_batching(tmp_path: Path) -> None:
    python = str(Path(program(tmp_path, "transformers")).with_name("python"))
    plain = launch(tmp_path, type="transformers", python=python, dtype="float32", device="cpu")
    batching = launch(tmp_path, type="transformers", python=python, args={"continuous-batching": True})
    start = f"{tmp_path}/bin/transformers serve org/model --host 127.0.0.1 --port {PORT}"
    assert words(plain) == f"{start} --dtype float32 --device cpu"
    assert words(batching) == f"{start} --continuous-batching"
    assert (plain.facts["prefix cache"], batching.facts["prefix cache"]) == ("off", "on")


def test_transformers_is_never_sent_ignore_eos_which_it_refuses(tmp_path: Path) -> None:
    found = launch(tmp_path, type="transformers", executable=program(tmp_path, "transformers"))
    assert found.server == {"model": "org/model", "ignore_eos": False}
    assert found.facts["ignore eos"] == "not supported"


# --- llama.cpp ---------------------------------------------------------------------------------------------------------------


def test_llamacpp_uses_llama_server_if_there_is_one(tmp_path: Path) -> None:
    server = program(tmp_path, "llama-server")
    model = tmp_path / "tiny.gguf"
    model.touch()
    found = launch(tmp_path, str(model), type="llamacpp", executable=server, device="cuda", args={"parallel": 8})
    assert words(found) == (
        f"{server} --model {model} --host 127.0.0.1 --port {PORT} --alias tiny --n-gpu-layers 999 --metrics --parallel 8"
    )
    assert found.server == {"model": "tiny"}


def test_llamacpp_uses_xllamacpp_of_the_given_python_otherwise(tmp_path: Path) -> None:
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny.gguf").touch()
    python = python_with(tmp_path, "xllamacpp")
    found = launch(tmp_path, str(tmp_path / "tiny"), type="llamacpp", python=python, args={"no-cache-prompt": True})
    assert words(found).startswith(f"{python} {SCRIPTS}/xllamacpp_server.py --model {tmp_path}/tiny.gguf ")
    assert found.facts["prefix cache"] == "off"


@pytest.mark.parametrize(("files", "is_found"), [(["a.gguf"], True), (["a.gguf", "b.gguf"], False), ([], False)])
def test_llamacpp_takes_the_only_gguf_of_a_folder(tmp_path: Path, files: list[str], is_found: bool) -> None:
    for name in files:
        (tmp_path / name).touch()
    server = program(tmp_path, "llama-server")
    if is_found:
        assert str(tmp_path / "a.gguf") in launch(tmp_path, str(tmp_path), type="llamacpp", executable=server).command
    else:
        with pytest.raises(EngineError, match="needs one GGUF file") as raised:
            launch(tmp_path, str(tmp_path), type="llamacpp", executable=server)
        assert raised.value.reason == "failed" and "`model`" in raised.value.remedy


def test_llamacpp_refuses_a_dtype_that_the_file_decides(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").touch()
    with pytest.raises(EngineError, match="dtype bfloat16"):
        launch(tmp_path, str(tmp_path), type="llamacpp", executable=program(tmp_path, "llama-server"), dtype="bfloat16")


# --- SGLang, TGI, Triton ------------------------------------------------------------------------------------------------------


def test_sglang_is_a_module_of_the_given_python(tmp_path: Path) -> None:
    python = python_with(tmp_path, "sglang")
    args = {"context-length": 2048, "disable-radix-cache": True, "tp": 2}
    found = launch(tmp_path, type="sglang", python=python, dtype="bfloat16", device="cuda:3", args=args)
    assert words(found) == (
        f"{python} -m sglang.launch_server --model-path org/model --host 127.0.0.1 --port {PORT} --dtype bfloat16 --device cuda "
        "--context-length 2048 --disable-radix-cache --tp 2"
    )
    assert found.env["CUDA_VISIBLE_DEVICES"] == "3"
    assert (found.reset_cache, found.profiler) == ("/flush_cache", ("/start_profile", "/stop_profile"))
    assert {"prefix cache": "off", "max length": "2048", "parallelism": "2"}.items() <= found.facts.items()


def test_sglang_lines_of_the_log(tmp_path: Path) -> None:
    """As the source of version 0.5.23 prints them; it was not run."""
    found = launch(tmp_path, type="sglang", python=python_with(tmp_path, "sglang"))
    lines = [
        (9.0, "[2026-01-01 00:00:00] server_args={'model_path': 'm', 'dtype': 'auto', 'device': 'cuda', 'tp_size': 2}"),
        (12.0, "[2026-01-01 00:00:03 TP0] Load weight end. elapsed=2.1 s, type=LlamaForCausalLM, dtype=torch.bfloat16"),
        (15.0, "[2026-01-01 00:00:06 TP0] Capture target decode CUDA graph end. elapsed=2.74 s, mem usage=2.66 GB"),
        (16.0, "[2026-01-01 00:00:07 TP0] max_total_num_tokens=99, chunked_prefill_size=8192, context_len=4096"),
        (19.0, "[2026-01-01 00:00:10] The server is fired up and ready to roll!"),
    ]
    phases = milestones.phases(lines, found.milestones)
    assert phases == {"imported": 9, "weights loaded": 12, "graphs captured": 15, "initialised": 16, "warmed up": 19}
    assert milestones.facts(lines, found.fact_lines) == {
        "dtype": "bfloat16",
        "max length": "4096",
        "device": "cuda",
        "parallelism": "2",
    }


def test_tgi_gets_ports_of_its_own_for_all_that_it_opens(tmp_path: Path) -> None:
    found = launch(tmp_path, type="tgi", executable=program(tmp_path, "text-generation-launcher"), device="cpu")
    given = dict(zip(found.command[1::2], found.command[2::2], strict=False))
    assert (given["--model-id"], given["--hostname"], given["--port"]) == ("org/model", "127.0.0.1", str(PORT))
    assert "--disable-custom-kernels" in found.command
    assert (
        len(
            {
                str(PORT),
                *(found.command[found.command.index(name) + 1] for name in ("--master-port", "--prometheus-port")),
            }
        )
        == 3
    )
    assert found.server["ignore_eos"] is False


def repository(folder: Path, *models: str) -> str:
    for model in models:
        (folder / "models" / model).mkdir(parents=True)
        (folder / "models" / model / "config.pbtxt").touch()
    return str(folder / "models")


def test_triton_serves_a_model_repository_over_kserve(tmp_path: Path) -> None:
    triton = program(tmp_path, "tritonserver")
    models = repository(tmp_path, "resnet")
    found = launch(
        tmp_path, models, type="triton", executable=triton, args={"log-verbose": 1, "strict-readiness": True}
    )
    assert found.command[:4] == (
        triton,
        f"--model-repository={models}",
        f"--http-port={PORT}",
        "--http-address=127.0.0.1",
    )
    assert found.command[-2:] == ("--log-verbose=1", "--strict-readiness")
    assert (found.ready, found.server) == ("/v2/health/ready", {"api": "kserve", "model": "resnet"})


def test_triton_of_pytriton_gets_its_libraries_and_the_stub_of_its_python(tmp_path: Path) -> None:
    python = python_with(tmp_path, "pytriton")
    triton = tmp_path / "packages/pytriton/tritonserver"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    for path in ("backends/python/libtriton_python.so", f"python_backend_stubs/{version}/triton_python_backend_stub"):
        (triton / path).parent.mkdir(parents=True)
        (triton / path).touch()
    found = launch(tmp_path, repository(tmp_path, "a", "b"), type="triton", python=python)
    assert found.command[0] == str(triton / "bin/tritonserver")
    assert f"--backend-directory={tmp_path}/backends" in found.command
    assert {path.name for path in (tmp_path / "backends/python").iterdir()} == {
        "libtriton_python.so",
        "triton_python_backend_stub",
    }
    assert found.env["LD_LIBRARY_PATH"].endswith("nvidia_pytriton.libs")
    assert found.server == {"api": "kserve"}


def test_triton_refuses_a_folder_without_models(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="is not a model repository"):
        launch(tmp_path, str(tmp_path), type="triton", executable=program(tmp_path, "tritonserver"))


# --- OpenVINO, ONNX Runtime ---------------------------------------------------------------------------------------------------


def test_openvino_runs_our_script_with_the_given_python(tmp_path: Path) -> None:
    (tmp_path / "openvino_model.xml").touch()
    python = python_with(tmp_path, "openvino_genai")
    found = launch(tmp_path, str(tmp_path), type="openvino", python=python, dtype="float32", device="cpu")
    assert words(found) == (
        f"{python} {SCRIPTS}/openvino_server.py --model {tmp_path} --host 127.0.0.1 --port {PORT} --inference-precision f32 --device CPU"
    )
    assert found.server == {"model": tmp_path.name}


def test_onnxruntime_runs_our_script_with_the_given_python(tmp_path: Path) -> None:
    (tmp_path / "genai_config.json").touch()
    python = python_with(tmp_path, "onnxruntime_genai")
    args = {"max_batch_size": 8}
    found = launch(tmp_path, str(tmp_path), type="onnxruntime", python=python, device="cpu", args=args)
    assert words(found) == (
        f"{python} {SCRIPTS}/onnxruntime_server.py --model {tmp_path} --host 127.0.0.1 --port {PORT} --provider cpu --max-batch-size 8"
    )


@pytest.mark.parametrize(("type", "words"), [("openvino", "optimum-cli export"), ("onnxruntime", "models.builder")])
def test_a_model_that_is_not_converted_says_how(tmp_path: Path, type: str, words: str) -> None:
    with pytest.raises(EngineError, match="needs a folder with") as raised:
        launch(tmp_path, str(tmp_path), type=type)
    assert words in raised.value.remedy


# --- our own server -----------------------------------------------------------------------------------------------------------


def test_inferometer_serves_a_folder_and_takes_parameters(tmp_path: Path) -> None:
    (tmp_path / "tiny").mkdir()
    args = {"config": {"parameters.max_batch": 8, "parameters.max_length": 512}}
    found = launch(tmp_path, str(tmp_path / "tiny"), type="inferometer", dtype="float32", device="cpu", args=args)
    assert words(found) == (
        f"{sys.executable} -m inferometer serve {tmp_path}/tiny --host 127.0.0.1 --http {PORT} --grpc -1 --metrics -1 --device cpu "
        "--config parameters.dtype=float32 --config parameters.max_batch=8 --config parameters.max_length=512"
    )
    assert (found.ready, found.server) == ("/v2/health/ready", {"model": "tiny"})
    assert (found.facts["dtype"], found.facts["max length"]) == ("float32", "512")


def test_inferometer_serves_the_simulator_too(tmp_path: Path) -> None:
    found = launch(tmp_path, "sim", type="inferometer", args={"ttft": "5ms"})
    assert words(found).endswith("--ttft 5ms") and found.server == {"model": "sim"}


# --- any command ------------------------------------------------------------------------------------------------------------------


def test_a_command_gets_the_port_and_the_model(tmp_path: Path) -> None:
    found = launch(tmp_path, type="command", command="serve {model} -p {port}", ready="/up")
    assert (found.command, found.ready) == (f"serve org/model -p {PORT}", "/up")


# --- what goes wrong ---------------------------------------------------------------------------------------------------------------


NEEDS = {
    "vllm": ("vllm", "pip install vllm"),
    "transformers": ("transformers", "pip install 'transformers[serving]'"),
    "llamacpp": ("xllamacpp", "pip install xllamacpp"),
    "sglang": ("sglang", "pip install sglang"),
    "tgi": ("text-generation-launcher", "install text-generation-inference"),
    "triton": ("tritonserver", "pip install nvidia-pytriton"),
    "openvino": ("openvino_genai", "pip install openvino-genai"),
    "onnxruntime": ("onnxruntime_genai", "pip install onnxruntime-genai"),
}


@pytest.mark.parametrize("type", NEEDS)
def test_an_engine_that_is_not_installed_names_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, type: str
) -> None:
    for name in ("a.gguf", "openvino_model.xml", "genai_config.json"):
        (tmp_path / name).touch()
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.pbtxt").touch()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineError, match=f"{NEEDS[type][0]} is not installed") as raised:
        launch(tmp_path, str(tmp_path), type=type)
    assert raised.value.reason == "not installed"
    assert NEEDS[type][1] in raised.value.remedy


def test_an_executable_that_does_not_exist_is_not_installed(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="there is no such program") as raised:
        launch(tmp_path, type="vllm", executable="~/nowhere/vllm")
    assert raised.value.reason == "not installed"


@pytest.mark.parametrize(("type", "flag"), [("vllm", "port"), ("transformers", "host"), ("inferometer", "port")])
def test_the_address_is_not_for_flags_to_set(tmp_path: Path, type: str, flag: str) -> None:
    python = str(Path(program(tmp_path, type)).with_name("python"))
    with pytest.raises(EngineError, match=f"args.{flag}: inferometer sets this flag itself") as raised:
        launch(tmp_path, type=type, python=python, args={flag: 1})
    assert "`url`" in raised.value.remedy


def test_every_server_engine_says_how_it_is_installed() -> None:
    for type in SERVERS:
        assert "install" in server_engine(EngineSpec(type=type)).install
