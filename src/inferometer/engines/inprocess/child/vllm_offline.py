"""vLLM used offline: `LLM.generate`, with one prompt at a time or a batch of them.

vLLM notes when a request's first and last token came, by CLOCK_MONOTONIC, and nothing in between. The caller has no output before all of
the batch has ended, which is when its requests end. Texts are tokenized by vLLM itself; messages with the model's chat template.
"""

import importlib
from collections.abc import Callable
from typing import Any

from inferometer.engines.inprocess.child import devices
from inferometer.engines.inprocess.child.errors import Unusable, is_out_of_memory, one_line
from inferometer.engines.inprocess.child.jobs import Job, Options, Recording, Request, Row, now
from inferometer.engines.inprocess.child.prompts import Prompts, trimmed

FAILED = "engine_error"


def load(options: Options, phase: Callable[[str], None]) -> Any:
    vllm = importlib.import_module("vllm")
    constructor = vllm.LLM  # imports most of the library
    phase("imported")
    engine = Offline(vllm, constructor(**_arguments(vllm, options)), options)
    phase("warmed up")
    return engine


def _arguments(vllm: Any, options: Options) -> dict[str, Any]:
    if options.compile:
        raise Unusable(
            "`compile` is for torch and transformers: vLLM compiles by itself, unless args has enforce-eager"
        )
    arguments: dict[str, Any] = {
        "model": options.model,
        "dtype": options.dtype or "auto",
        "disable_log_stats": False,  # else requests have no times
    }
    if "profiler_config" in getattr(vllm.EngineArgs, "__dataclass_fields__", {}):  # older versions have none
        arguments["profiler_config"] = {"profiler": "torch", "torch_profiler_dir": options.traces}
    return arguments | options.arguments()


class Offline:
    """An LLM of vLLM."""

    def __init__(self, vllm: Any, llm: Any, options: Options) -> None:
        self._vllm, self._llm, self._traces = vllm, llm, options.traces
        config = getattr(llm.llm_engine, "vllm_config", None)
        self.facts = _facts(config)
        self.versions = devices.versions("vllm", "torch", "transformers")
        tokenizer = llm.get_tokenizer()
        self._prompts = Prompts(tokenizer, int(self.facts.get("max length") or 0))
        self.facts["chat template"] = "the model's" if self._prompts.has_template else "none"
        ends = getattr(tokenizer, "eos_token_id", None)
        self._ends = set() if ends is None else {ends}
        self._since = 0.0

    def generate(self, job: Job, recording: Recording) -> None:
        for batch in job.batches(job.level):
            sent = now()
            rows = [Row(number, index, sent, n_want=request.n_out) for number, index, request in batch]
            recording.in_flight = len(rows)
            running, prompts, settings = [], [], []
            for row, (_, _, request) in zip(rows, batch):  # noqa: B905 - older versions of Python
                try:
                    prompts.append(self._prompt(request, job.chat))
                except Unusable as error:
                    _fail(row, error)
                    continue
                running.append(row)
                settings.append(self._settings(request.n_out or None, bool(request.n_out) and job.ignore_eos))
            self._run(running, prompts, settings)
            recording.in_flight = 0
            for row in rows:
                recording.add(row)

    def _run(self, rows: list[Row], prompts: list[Any], settings: list[Any]) -> None:
        if not rows:
            return
        try:
            results = self._llm.generate(prompts, settings, use_tqdm=False)
        except Exception as error:
            if _is_dead(error):
                raise
            for row in rows:
                _fail(row, error)
            return
        done = now()
        for row, result in zip(rows, results):  # noqa: B905
            row.done, row.n_in = done, len(result.prompt_token_ids or ())
            row.n_out = len(result.outputs[0].token_ids)
            cached = getattr(result, "num_cached_tokens", None)
            row.cached = -1 if cached is None else int(cached)
            times = getattr(result, "metrics", None)
            first, last = (getattr(times, name, 0.0) or 0.0 for name in ("first_token_ts", "last_token_ts"))
            if first and last:
                row.first, row.last = round(first * 1e9), round(last * 1e9)

    def _prompt(self, request: Request, chat: bool) -> Any:
        """A text as it is, everything else as token ids."""
        if isinstance(request.prompt, str) and not chat:
            return {"prompt": request.prompt}
        return {"prompt_token_ids": self._prompts.ids(request, chat)}

    def _settings(self, tokens: "int | None", is_forced: bool) -> Any:
        return self._vllm.SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=is_forced)

    def complete(self, requests: list[Request], tokens: int, chat: bool) -> list[dict[str, Any]]:
        outputs: list[dict[str, Any]] = []
        for request in requests:
            try:
                prompt = self._prompt(Request(request.prompt, tokens), chat)
                (result,) = self._llm.generate([prompt], self._settings(tokens, False), use_tqdm=False)
                made = result.outputs[0]
                outputs.append({"text": made.text, "ids": trimmed(list(made.token_ids), self._ends)})
            except (Unusable, ValueError) as error:
                outputs.append({"text": "", "error": one_line(error)})
        return outputs

    def start_profile(self) -> None:
        self._since = devices.wall()
        self._llm.start_profile()

    def stop_profile(self, trace: str) -> str:
        self._llm.stop_profile()
        found = devices.newest(self._traces, self._since)
        if found is None:
            raise Unusable(f"vLLM's profiler has written nothing to {self._traces}")
        return found

    def free_memory(self) -> None:
        return  # vLLM keeps its memory for as long as it runs

    def close(self) -> None:
        shutdown = getattr(getattr(self._llm.llm_engine, "engine_core", None), "shutdown", None)
        if shutdown is not None:
            shutdown()


def _facts(config: Any) -> dict[str, str]:
    """What vLLM's configuration says; what it does not say is left out."""

    def found(*names: str) -> Any:
        value = config
        for name in names:
            value = getattr(value, name, None)
        return value

    has_cache = found("cache_config", "enable_prefix_caching")
    facts = {
        "dtype": found("model_config", "dtype"),
        "device": found("device_config", "device_type"),
        "max length": found("model_config", "max_model_len"),
        "prefix cache": None if has_cache is None else "on" if has_cache else "off",
        "speculation": None if config is None else "on" if found("speculative_config") else "off",
        "parallelism": found("parallel_config", "tensor_parallel_size"),
        "compiled": None if config is None else "no" if found("model_config", "enforce_eager") else "yes",
    }
    return {name: str(value).removeprefix("torch.") for name, value in facts.items() if value is not None}


def _is_dead(error: BaseException) -> bool:
    return is_out_of_memory(error) or type(error).__name__ in ("EngineDeadError", "EngineGenerateError")


def _fail(row: Row, error: BaseException) -> None:
    row.done, row.failure, row.message = now(), FAILED, one_line(error)
