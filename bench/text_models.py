"""Text models: our server over HTTP against transformers in the same process, with a Llama of random weights.

    python -m bench.text_models             1b on a GPU, tiny on a CPU; also: tiny, 1b
    python -m bench.text_models 1b FOLDER   keeps the model there for the next run

Bounds: with 64 in flight at least 0.8 x the tokens per second of transformers' own continuous batching; the TTFT p50 with
8 in flight below 3 x that with 1. It needs torch, transformers and what `inferometer serve` needs, and no network.
"""

import asyncio
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
TOKENS = {"tiny": 64, "1b": 128}
PROMPT = (32, 128)
SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 4, "num_attention_heads": 8,
             "num_key_value_heads": 2, "vocab_size": 4000, "max_position_embeddings": 1024},
    "1b": {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22, "num_attention_heads": 32,
           "num_key_value_heads": 4, "vocab_size": 32000, "max_position_embeddings": 2048},
}  # fmt: skip
REQUESTS = {"tiny": {1: 12, 8: 48, 64: 192}, "1b": {1: 16, 8: 96, 64: 512}}
"""Requests by how many are in flight."""


# --- the model -------------------------------------------------------------------------------------------------------


def make(folder: Path, size: str) -> None:
    import torch  # noqa: PLC0415
    import transformers  # noqa: PLC0415
    from tokenizers import Tokenizer, models, pre_tokenizers  # noqa: PLC0415

    if (folder / "model.safetensors").exists():
        return
    config = transformers.LlamaConfig(**SIZES[size], eos_token_id=None, bos_token_id=None, pad_token_id=0)
    torch.manual_seed(0)
    dtype = torch.bfloat16 if size == "1b" else torch.float32
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = transformers.LlamaForCausalLM(config).to(dtype)
    model.generation_config.eos_token_id = None
    model.save_pretrained(folder)
    words = {"<unk>": 0, **{f"w{i}": i for i in range(1, config.vocab_size)}}
    tokenizer = Tokenizer(models.WordLevel(words, "<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)


def prompts(size: str, count: int) -> list[list[int]]:
    rng = random.Random(1)
    return [[rng.randrange(1, SIZES[size]["vocab_size"]) for _ in range(rng.randint(*PROMPT))] for _ in range(count)]


# --- in the same process ---------------------------------------------------------------------------------------------


def in_process(folder: Path, size: str, part: str) -> dict[str, float]:
    import torch  # noqa: PLC0415
    import transformers  # noqa: PLC0415

    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = "auto" if device == "cuda" else torch.float32
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(device).eval()
    kind, _, count = part.partition(" ")
    measure = {"continuous": _continuous, "static": _static}[kind]
    return {"rate": measure(transformers, torch, model, size, int(count))}


def _static(transformers: Any, torch: Any, model: Any, size: str, batch: int) -> float:
    """Return the tokens per second of batches that start and end together."""
    texts = prompts(size, batch)
    longest = max(map(len, texts))
    ids = torch.tensor([[0] * (longest - len(text)) + text for text in texts], device=model.device)
    mask = torch.tensor([[0] * (longest - len(text)) + [1] * len(text) for text in texts], device=model.device)
    more = {"do_sample": False, "pad_token_id": 0, "attention_mask": mask}
    model.generate(ids, max_new_tokens=8, **more)
    rounds, begin = 2, time.perf_counter()
    for _ in range(rounds):
        made = model.generate(ids, max_new_tokens=TOKENS[size], **more)
        assert made.shape[1] == longest + TOKENS[size]
    return rounds * batch * TOKENS[size] / (time.perf_counter() - begin)


def _continuous(transformers: Any, torch: Any, model: Any, size: str, in_flight: int) -> float:
    """Return the tokens per second of transformers' own manager, with a new request for each that ends."""
    config = transformers.GenerationConfig(
        do_sample=False, eos_token_id=-1, pad_token_id=0, max_new_tokens=TOKENS[size]
    )
    with torch.no_grad():
        manager = model.init_continuous_batching(generation_config=config)
        if hasattr(manager, "warmup"):
            manager.warmup()
        manager.start()
        try:
            _drive(manager, prompts(size, in_flight // 2), TOKENS[size], in_flight)
            texts = prompts(size, REQUESTS[size][64])
            begin = time.perf_counter()
            made = _drive(manager, texts, TOKENS[size], in_flight)
            return made / (time.perf_counter() - begin)
        finally:
            manager.stop(block=True)


def _drive(manager: Any, texts: list[list[int]], tokens: int, in_flight: int) -> int:
    """Keep up to `in_flight` requests running; return how many tokens were generated."""
    rest, pending, made = list(texts), 0, 0
    while rest or pending:
        while rest and pending < in_flight:
            manager.add_request(rest.pop(), max_new_tokens=tokens)
            pending += 1
        result = manager.get_result(timeout=120)
        if result is None:
            raise RuntimeError("transformers' continuous batching returned nothing for 120 s")
        if result.is_finished():
            if result.error is not None:
                raise RuntimeError(f"transformers' continuous batching failed: {result.error}")
            pending -= 1
            made += len(result.generated_tokens)
    return made


# --- our server ------------------------------------------------------------------------------------------------------


class Server:
    """`inferometer serve FOLDER` in a child process."""

    def __init__(self, folder: Path) -> None:
        import torch  # noqa: PLC0415

        self.port, self.name = _free_port(), folder.name
        device = "cuda" if torch.cuda.is_available() else "cpu"
        arguments = [
            "serve",
            str(folder),
            "--http",
            str(self.port),
            "--grpc",
            "-1",
            "--metrics",
            "-1",
            "--device",
            device,
        ]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        begin = time.perf_counter()
        self._process = subprocess.Popen([sys.executable, "-m", "inferometer", *arguments], env=environment)
        while not asyncio.run(_is_ready(self.port)):
            if self._process.poll() is not None or time.perf_counter() - begin > 300:
                self.close()
                raise RuntimeError("the server did not start")
            time.sleep(0.1)
        self.started = time.perf_counter() - begin

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(30)


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


async def _is_ready(port: int) -> bool:
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /v2/health/ready HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        line = await reader.readline()
        writer.close()
    except OSError:
        return False
    return b" 200 " in line


Timing = tuple[float, float, int]
"""Seconds to the first token and to the end, and the number of tokens."""


async def _request(port: int, path: str, body: dict[str, Any]) -> Timing:
    data = json.dumps(body).encode()
    begin = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    writer.write(head.encode() + data)
    status = await reader.readline()
    if b" 200 " not in status:
        raise RuntimeError(f"{path}: {status.decode().strip()}: {(await reader.read()).decode()[-300:]}")
    first, words = 0.0, 0
    while line := await reader.readline():
        if line.startswith(b"data: {"):
            made = json.loads(line[6:])
            if "error" in made:
                raise RuntimeError(str(made["error"]))
            text = made["text_output"] if "text_output" in made else "".join(one["text"] for one in made["choices"])
            first = first or (time.perf_counter() - begin if text else 0.0)
            words += text.count("w")
    writer.close()
    return first, time.perf_counter() - begin, words


async def _load(server: Server, api: str, size: str, in_flight: int) -> tuple[float, list[Timing]]:
    """Return the tokens per second of a closed loop, and the timing of each request."""
    texts = iter([" ".join(f"w{token}" for token in text) for text in prompts(size, REQUESTS[size][in_flight])])
    made: list[Timing] = []

    async def client() -> None:
        for text in texts:
            made.append(await _request(server.port, *_body(api, server.name, text, TOKENS[size])))

    begin = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(in_flight)))
    return sum(words for *_, words in made) / (time.perf_counter() - begin), made


def _body(api: str, name: str, text: str, tokens: int) -> tuple[str, dict[str, Any]]:
    if api == "openai":
        body = {
            "model": name,
            "prompt": text,
            "max_tokens": tokens,
            "stream": True,
            "ignore_eos": True,
            "temperature": 0,
        }
        return "/v1/completions", body
    return f"/v2/models/{name}/generate_stream", {"text_input": text, "max_tokens": tokens}


async def _api(server: Server) -> str:
    """Return the endpoint to use: OpenAI's if the server has it for this model."""
    try:
        await _request(server.port, *_body("openai", server.name, "w1", 1))
    except RuntimeError:
        return "kserve"
    return "openai"


def served(folder: Path, size: str) -> dict[str, Any]:
    server = Server(folder)
    try:
        text = " ".join(f"w{i}" for i in range(1, 65))
        first = asyncio.run(_request(server.port, *_body("kserve", server.name, text, TOKENS[size])))
        api = asyncio.run(_api(server))
        found: dict[str, Any] = {
            "api": api,
            "ready after": server.started,
            "first ttft": first[0],
            "first e2e": first[1],
        }
        for in_flight in REQUESTS[size]:
            rate, made = asyncio.run(_load(server, api, size, in_flight))
            lost = [words for *_, words in made if words != TOKENS[size]]
            if lost:
                print(
                    f"WRONG: {len(lost)} of {len(made)} responses do not have {TOKENS[size]} tokens (one has {lost[0]})"
                )
            ttft, e2e = (statistics.median(one[i] for one in made) for i in (0, 1))
            found[str(in_flight)] = {"rate": rate, "ttft": ttft, "e2e": e2e}
        return found
    finally:
        server.close()


# --- all of it -------------------------------------------------------------------------------------------------------


def _child(folder: Path, size: str, part: str) -> dict[str, float]:
    """Run a part in a process of its own, so that memory and kernels are not shared."""
    command = [sys.executable, str(Path(__file__).resolve()), "--part", part, size, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    if done.returncode:
        print(f"{part}: failed: {(done.stderr.strip().splitlines() or ['?'])[-1][:300]}")
        return {"rate": float("nan")}
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def main() -> int:
    words = sys.argv[1:] if sys.argv[0].endswith("text_models.py") else []
    if words[:1] == ["--part"]:
        print(json.dumps(in_process(Path(words[3]), words[2], words[1])))
        return 0
    import torch  # noqa: PLC0415

    size = words[0] if words else "1b" if torch.cuda.is_available() else "tiny"
    if size == "tiny":
        os.environ["OMP_NUM_THREADS"] = (
            "1"  # for the server and for transformers: on a busy machine, more wait for each other
        )
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(words[1]) if len(words) > 1 else Path(temporary) / size
        folder.mkdir(parents=True, exist_ok=True)
        make(folder, size)
        ours = served(folder, size)
        parts = ["continuous 64", "static 64", *(["static 256"] if size == "1b" else [])]
        theirs = {part: _child(folder, size, part)["rate"] for part in parts}
    return _show(size, ours, theirs)


def _show(size: str, ours: dict[str, Any], theirs: dict[str, float]) -> int:
    print(
        f"\n{size}, prompts of {PROMPT[0]} to {PROMPT[1]} tokens, {TOKENS[size]} tokens each, {ours['api']} over HTTP"
    )
    print(f"ready after {ours['ready after']:.1f} s; first request: TTFT {1e3 * ours['first ttft']:.1f} ms, "
          f"{1e3 * ours['first e2e']:.0f} ms in all")  # fmt: skip
    for in_flight in REQUESTS[size]:
        one = ours[str(in_flight)]
        print(f"ours, {in_flight:2} in flight: {one['rate']:8.0f} tokens/s, TTFT p50 {1e3 * one['ttft']:7.1f} ms, "
              f"e2e p50 {1e3 * one['e2e']:7.0f} ms")  # fmt: skip
    for part, rate in theirs.items():
        print(f"transformers, {part}: {rate:8.0f} tokens/s in process")
    rate, ttft = ours["64"]["rate"] / theirs["continuous 64"], ours["8"]["ttft"] / ours["1"]["ttft"]
    first = ours["first ttft"] / ours["1"]["ttft"]
    print(f"at 64 in flight: {rate:.2f} x continuous batching (bound: at least 0.8)")
    print(f"TTFT p50 at 8 in flight: {ttft:.2f} x that at 1 (bound: below 3)")
    print(f"first request: TTFT {first:.2f} x the p50 at 1 in flight")
    results = Path(__file__).parent / "results"
    results.mkdir(exist_ok=True)
    (results / "text_models.json").write_text(json.dumps({"size": size, "ours": ours, "theirs": theirs}, indent=1))
    return int(not (rate >= 0.8 and ttft < 3))


if __name__ == "__main__":
    sys.exit(main())
