"""Why a server ended: from its exit status and what it printed. The files in logs/ are what real servers printed."""

from pathlib import Path

import pytest

from inferometer.engines.failures import explain

LOGS = Path(__file__).parent / "logs"

RECORDED = {
    "inferometer_flag": ("failed", "a flag that it does not have: Error: No such option '--no-such-flag'."),
    "inferometer_model": ("failed", "the model was not found: inferometer: no such model: /models/none"),
    "inferometer_port": ("port taken", "the port is taken: inferometer: 127.0.0.1 port 34697 is in use"),
    "llamacpp_flag": ("failed", "unrecognized arguments: --no-such-flag 1"),
    "llamacpp_model": ("failed", "the model was not found: gguf_init_from_file: failed to open GGUF file"),
    "llamacpp_not_a_gguf": ("failed", "the model's file cannot be read"),
    "llamacpp_port": ("port taken", "couldn't bind HTTP server socket, hostname: 127.0.0.1"),
    "not_executable": ("not installed", "no-such-program: command not found"),
    "python_memory": ("out of memory", "out of memory: MemoryError"),
    "python_module": ("not installed", "No module named 'sglang'"),
    "transformers_cuda": ("failed", "there is no such device: AssertionError: Torch not compiled with CUDA enabled"),
    "transformers_flag": ("failed", "a flag that it does not have: Error: No such option '--no-such-flag'."),
    "transformers_hub_model": ("failed", "the hub cannot be reached: '[Errno -2] Name or service not known'"),
    "transformers_model": ("failed", "the model was not found: OSError: Repo id must be in the form"),
    "transformers_port": ("port taken", "the port is taken: [Errno 98] error while attempting to bind on address"),
    "vllm_flag": ("failed", "vllm: error: unrecognized arguments: --no-such-flag 1"),
    "vllm_hub_model": ("failed", "the model was not found: OSError: We couldn't connect to"),
    "vllm_kv_memory": ("out of memory", "out of memory: RuntimeError: Worker failed with error 'Available memory"),
    "vllm_model": ("failed", "Repo id must be in the form 'repo_name' or 'namespace/repo_name': '/models/none'"),
    "vllm_port": ("port taken", "the port is taken: OSError: [Errno 98] Address already in use"),
}


@pytest.mark.parametrize("name", RECORDED)
def test_what_real_servers_print(name: str) -> None:
    status, *lines = (LOGS / f"{name}.txt").read_text().splitlines()
    code = status.removeprefix("# status ")
    reason, words = explain(None if code == "none" else int(code), lines)
    assert (reason, RECORDED[name][1] in words) == (RECORDED[name][0], True), words
    assert "\n" not in words and len(words) < 260


def test_every_recorded_log_is_tested() -> None:
    assert {path.stem for path in LOGS.glob("*.txt")} == set(RECORDED)


@pytest.mark.parametrize(
    "line",
    [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.25 GiB",
        "(EngineCore pid=7) ERROR 11-17 03:45:44 [core.py:9] ValueError: No available memory for the cache blocks.",
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': -9}",
        "terminate called after throwing an instance of 'std::bad_alloc'",
        "RuntimeError: [enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes.",
    ],
)
def test_memory_that_runs_out(line: str) -> None:
    assert explain(1, ["Starting", line])[0] == "out of memory"


def test_the_last_cause_counts_and_not_what_comes_after_it() -> None:
    lines = [
        "OSError: [Errno 98] Address already in use",
        "Retrying with another port",
        "torch.OutOfMemoryError: CUDA out of memory.",
        "RuntimeError: Engine core initialization failed. See root cause above.",
    ]
    assert explain(1, lines) == ("out of memory", "out of memory: torch.OutOfMemoryError: CUDA out of memory.")


def test_messages_that_are_not_errors_are_ignored() -> None:
    lines = [
        "(APIServer pid=1) WARNING 11-17 03:45:26 [x.py:1] this may run out of memory",
        "INFO:     No module named 'fast_kernels'",
        "ValueError: max_model_len is too large",
    ]
    assert explain(1, lines) == ("failed", "ValueError: max_model_len is too large")


def test_log_prefixes_are_removed() -> None:
    line = "(EngineCore pid=20853) ERROR 11-17 03:45:44 [core.py:133] ValueError: no such thing"
    assert explain(1, [line]) == ("failed", "ValueError: no such thing")


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (137, ("out of memory", "killed by signal 9, which is what the kernel does when memory runs out")),
        (139, ("died", "ended by SIGSEGV")),
        (132, ("died", "ended by SIGILL")),
        (127, ("not installed", "the program was not found")),
        (1, ("failed", "Loading")),
        (None, ("failed", "")),
    ],
)
def test_without_a_cause_in_the_log_the_status_says_what_it_can(status: int | None, expected: tuple[str, str]) -> None:
    assert explain(status, ["Loading"]) == expected
