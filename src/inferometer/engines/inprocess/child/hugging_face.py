"""Hugging Face transformers: one request at a time, with a real time for each token, and static batches, of which only the end is known.

Tokenizing and detokenizing are part of a request's time. Outputs are greedy. If the data says how long an output is, the end-of-text
token does not end it: all engines then generate the same number of tokens.
"""

import copy
import importlib
from collections.abc import Callable
from typing import Any

from inferometer.engines.inprocess.child import devices
from inferometer.engines.inprocess.child.errors import Unusable, is_out_of_memory, one_line
from inferometer.engines.inprocess.child.jobs import Job, Options, Recording, Request, Row, now
from inferometer.engines.inprocess.child.prompts import Prompts, trimmed

FAILED = "engine_error"
_Numbered = tuple[int, int, Request]


def load(options: Options, phase: Callable[[str], None]) -> Any:
    torch, transformers = importlib.import_module("torch"), importlib.import_module("transformers")
    auto = (transformers.AutoModelForCausalLM, transformers.AutoTokenizer)  # imports most of the library
    phase("imported")
    loaded = _Loaded(torch, transformers, options, *auto)
    phase("weights loaded")
    if options.mode == "continuous":
        return importlib.import_module(f"{__package__}.continuous").Continuous(loaded, phase)
    engine = _MODES[options.mode](loaded)
    engine.warm_up()
    phase("compiled" if options.compile else "warmed up")
    return engine


class _Loaded:
    """A model and its tokenizer on their device."""

    def __init__(self, torch: Any, transformers: Any, options: Options, model_class: Any, tokenizer_class: Any) -> None:
        self.torch, self.transformers, self.options = torch, transformers, options
        self.device = devices.device_of(torch, options.device)
        given = options.arguments()
        fields = vars(transformers.GenerationConfig())
        self.generation = {name: given.pop(name) for name in list(given) if name in fields}
        """Flags that are settings of the generation, not of the model."""
        self.batching: dict[str, Any] = {}
        """Those of continuous batching."""
        if options.mode == "continuous":
            names = getattr(getattr(transformers, "ContinuousBatchingConfig", None), "__dataclass_fields__", {})
            self.batching = {name: given.pop(name) for name in list(given) if name in names}
        dtype = devices.dtype_of(torch, options.dtype) or "auto"
        trusted = {name: given[name] for name in ("trust_remote_code", "revision") if name in given}
        self.tokenizer = tokenizer_class.from_pretrained(options.model, **trusted)
        placed = {} if "device_map" in given else {"device_map": {"": self.device}}
        self.model = _from_pretrained(model_class, options.model, dtype, placed, given, self.device)
        self.model.eval()
        self.device = self.model.device
        self._configure()

    def _configure(self) -> None:
        model, config = self.model, self.model.generation_config
        ends = config.eos_token_id
        self.ends = sorted({ends} if isinstance(ends, int) else set(ends or ()))
        self.pad = next(each for each in (self.tokenizer.pad_token_id, *self.ends, 0) if each is not None)
        # What a request leaves open is taken from here, so this must not end outputs, nor sample.
        model.generation_config = self.transformers.GenerationConfig(
            do_sample=False, pad_token_id=self.pad, bos_token_id=config.bos_token_id, **self.generation
        )
        text = model.config.get_text_config()
        self.context = int(getattr(text, "max_position_embeddings", 0) or 0)
        self.prompts = Prompts(self.tokenizer, self.context)
        if self.options.compile and self.options.mode != "continuous":
            self._compile()

    def _compile(self) -> None:
        """On GPUs, generate() compiles each step itself if the cache has a fixed size. Elsewhere, the model is compiled."""
        if self.device.type == "cuda":
            self.model.generation_config.cache_implementation = self.generation.get("cache_implementation", "static")
        else:
            self.model.compile(dynamic=True)

    def settings(self, tokens: int, is_forced: bool) -> Any:
        """The settings of a call of generate."""
        made = copy.deepcopy(self.model.generation_config)
        made.max_new_tokens = tokens
        made.eos_token_id = None if is_forced or not self.ends else self.ends
        return made

    def facts(self, **more: str) -> dict[str, str]:
        options = self.options
        return {
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "device": str(self.device),
            "max length": str(self.context) if self.context else "",
            "attention": str(getattr(self.model.config, "_attn_implementation", "") or ""),
            "chat template": "the model's" if self.prompts.has_template else "none",
            "prefix cache": "off",
            "speculation": "off",
            "compiled": "yes" if options.compile else "no",
            **more,
        }


def _from_pretrained(
    kind: Any, model: str, dtype: Any, placed: dict[str, Any], given: dict[str, Any], device: Any
) -> Any:
    """Load straight onto the device if accelerate is installed, which that needs; else move the model there."""
    try:
        importlib.import_module("accelerate")
    except ImportError:
        if "device_map" in given:
            raise
        return kind.from_pretrained(model, dtype=dtype, **given).to(device)
    return kind.from_pretrained(model, dtype=dtype, **placed, **given)


class _Engine:
    """What both modes have in common."""

    def __init__(self, loaded: _Loaded) -> None:
        self.torch, self.loaded, self.prompts = loaded.torch, loaded, loaded.prompts
        self.facts = loaded.facts()
        self.versions = devices.versions("transformers", "torch", "tokenizers", "accelerate")
        self._profiler = devices.TorchProfiler(loaded.torch)

    def warm_up(self) -> None:
        """The first call loads kernels, and compiles. What depends on the size of a batch is left to the first requests."""
        self.tokens([[self.loaded.pad] * 8], 4, True)

    def tokens(self, prompts: list[list[int]], most: int, is_forced: bool, streamer: Any = None) -> list[list[int]]:
        """Generate for a batch, padded on the left. Returns what follows each prompt."""
        torch, width = self.torch, max(map(len, prompts))
        ids = torch.tensor([[self.loaded.pad] * (width - len(one)) + one for one in prompts])
        mask = torch.tensor([[0] * (width - len(one)) + [1] * len(one) for one in prompts])
        made = self.loaded.model.generate(  # without gradients
            input_ids=ids.to(self.loaded.device),
            attention_mask=mask.to(self.loaded.device),
            generation_config=self.loaded.settings(most, is_forced),
            streamer=streamer,
        )
        rows: list[list[int]] = made[:, width:].tolist()  # waits for the device, once
        return rows

    def complete(self, requests: list[Request], tokens: int, chat: bool) -> list[dict[str, Any]]:
        """The greedy outputs of some prompts, one at a time, up to the end of the text."""
        outputs: list[dict[str, Any]] = []
        for request in requests:
            try:
                ids = self.prompts.ids(Request(request.prompt, tokens), chat)
                made = trimmed(self.tokens([ids], tokens, False)[0], set(self.loaded.ends))
                outputs.append({"text": self.prompts.text(made), "ids": made})
            except Unusable as error:
                outputs.append({"text": "", "error": one_line(error)})
        return outputs

    def start_profile(self) -> None:
        self._profiler.start()

    def stop_profile(self, trace: str) -> str:
        return self._profiler.stop(trace)

    def free_memory(self) -> None:
        devices.free_memory(self.torch)

    def close(self) -> None:
        return


class Serial(_Engine):
    """One request at a time."""

    def generate(self, job: Job, recording: Recording) -> None:
        for number, index, request in job.each():
            row = Row(number, index, now(), n_want=request.n_out)
            recording.in_flight = 1
            try:
                ids = self.prompts.ids(request, job.chat)
                row.n_in = len(ids)
                stamps = _Stamps()
                forced = bool(request.n_out) and job.ignore_eos
                made = self.tokens([ids], self.prompts.limit(request, len(ids)), forced, stamps)[0]
                self.prompts.text(made)
                row.done, row.n_out = now(), len(made)
                row.arrivals, row.tokens = stamps.arrivals, stamps.tokens
                if row.arrivals:
                    row.first, row.last = row.arrivals[0], row.arrivals[-1]
            except Exception as error:
                fail(row, error)
            recording.in_flight = 0
            recording.add(row)


class _Stamps:
    """A streamer that notes when each token came. The tokens are on the CPU then: the device was waited for."""

    def __init__(self) -> None:
        self.arrivals: list[int] = []
        self.tokens: list[int] = []
        self._has_prompt = False

    def put(self, value: Any) -> None:
        at = now()
        if not self._has_prompt:  # the first call has the prompt
            self._has_prompt = True
            return
        self.arrivals.append(at)
        self.tokens.append(int(value.numel()))

    def end(self) -> None:
        return


class Batched(_Engine):
    """Static batches: all requests of a batch start together, and end when the longest of them does."""

    def generate(self, job: Job, recording: Recording) -> None:
        for batch in job.batches(job.level):
            sent = now()
            rows = [Row(number, index, sent, n_want=request.n_out) for number, index, request in batch]
            recording.in_flight = len(rows)
            self._run(job, batch, rows, recording)
            recording.in_flight = 0
            for row in rows:
                recording.add(row)

    def _run(self, job: Job, batch: list[_Numbered], rows: list[Row], recording: Recording) -> None:
        prompts: list[list[int]] = []
        running: list[tuple[Row, Request]] = []
        for row, (_, _, request) in zip(rows, batch):  # noqa: B905 - older versions of Python
            try:
                ids = self.prompts.ids(request, job.chat)
            except Unusable as error:
                fail(row, error)
                continue
            row.n_in = len(ids)
            prompts.append(ids)
            running.append((row, request))
        if not running:
            return
        forced = job.ignore_eos and all(request.n_out for _, request in running)
        most = max(self.prompts.limit(request, row.n_in) for row, request in running)
        try:
            made = self.tokens(prompts, most, forced)
            outputs = [self._own(ids, request, forced) for ids, (_, request) in zip(made, running)]  # noqa: B905
            self.prompts.tokenizer.batch_decode(outputs, skip_special_tokens=True)
        except Exception as error:
            for row, _ in running:
                fail(row, error)
            return
        done = now()
        for (row, _), output in zip(running, outputs):  # noqa: B905
            row.done, row.n_out = done, len(output)
        recording.useful += sum(row.n_in + row.n_out for row, _ in running)
        recording.processed += len(running) * (max(map(len, prompts)) + max(map(len, made)))

    def _own(self, ids: list[int], request: Request, is_forced: bool) -> list[int]:
        """What a request wanted of the tokens that its batch went on for."""
        wanted = ids[: request.n_out] if request.n_out else ids
        return wanted if is_forced else trimmed(wanted, set(self.loaded.ends))


def fail(row: Row, error: BaseException) -> None:
    """Note why a request failed. Too little memory is a matter of the whole level."""
    if is_out_of_memory(error):
        raise error
    row.done, row.n_out, row.failure, row.message = now(), -1, FAILED, one_line(error)
    row.arrivals, row.tokens, row.first, row.last = [], [], None, None


_MODES: dict[str, Any] = {"serial": Serial, "batched": Batched}
