"""Encoders: the latency of one forward pass, with torch, torch.compile or ONNX Runtime.

The inputs are random token ids of the given batch size and length, the same for every engine: they depend on the seed, the sizes and the
model's inputs only. A call is timed from inputs on the device to outputs that are computed: the device is waited for before and after
each call. What is compared is the logits of a classifier, and the last hidden state of everything else.
"""

import importlib
import json
import random
import resource
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from inferometer.engines.inprocess.child import devices
from inferometer.engines.inprocess.child.errors import Unusable
from inferometer.engines.inprocess.child.jobs import Options, now

_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
_OUTPUTS = ("logits", "last_hidden_state")
"""In the order of preference."""
_FIRST_TOKEN = 5
"""Ids below it are often special."""


def load(options: Options, phase: Callable[[str], None]) -> Any:
    if options.type == "onnxruntime":
        return _OnnxEncoder(options, phase)
    return _TorchEncoder(options, phase)


class _Encoder:
    """Measures calls. Subclasses have `facts`, `versions`, `_prepared` and `_call`."""

    facts: dict[str, str]
    versions: dict[str, str]
    _vocabulary: int
    _context: int

    def encode(self, command: dict[str, Any]) -> dict[str, Any]:
        batch, length = int(command["batch"]), int(command["length"])
        if self._context and length > self._context:
            raise Unusable(f"a sequence of {length} tokens is longer than the model's {self._context}")
        inputs = self._prepared(self._ids(batch, length, int(command["seed"])))
        output = None
        for _ in range(max(int(command["warmup"]), 1)):
            output = self._call(inputs)
        self._wait()
        self._reset_memory()
        seconds = []
        began = now()
        for _ in range(int(command["measurements"])):
            begin = now()
            output = self._call(inputs)
            self._wait()
            seconds.append((now() - begin) / 1e9)
        ended = now()
        memory = self._memory()
        numpy = importlib.import_module("numpy")
        numpy.save(Path(command["outputs"]), self._as_array(output))
        return {"seconds": seconds, "began": began, "ended": ended, "memory": memory}

    def _ids(self, batch: int, length: int, seed: int) -> list[list[int]]:
        numbers = random.Random(f"{seed} {batch} {length}")
        first = min(_FIRST_TOKEN, self._vocabulary - 1)
        return [[numbers.randrange(first, self._vocabulary) for _ in range(length)] for _ in range(batch)]

    def _prepared(self, ids: list[list[int]]) -> Any:
        raise NotImplementedError

    def _call(self, inputs: Any) -> Any:
        raise NotImplementedError

    def _as_array(self, output: Any) -> Any:
        raise NotImplementedError

    def _wait(self) -> None:
        return

    def _reset_memory(self) -> None:
        return

    def _memory(self) -> "int | None":
        """Peak memory of this process since it was started."""
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024

    def start_profile(self) -> None:
        raise Unusable("encoders are not profiled")

    def stop_profile(self, trace: str) -> str:
        raise Unusable("encoders are not profiled")

    def free_memory(self) -> None:
        return

    def close(self) -> None:
        return


class _TorchEncoder(_Encoder):
    def __init__(self, options: Options, phase: Callable[[str], None]) -> None:
        torch, transformers = importlib.import_module("torch"), importlib.import_module("transformers")
        kinds = (transformers.AutoModel, transformers.AutoModelForSequenceClassification)  # imports most of the library
        phase("imported")
        self._torch, self._device = torch, devices.device_of(torch, options.device)
        self._model = _pretrained(torch, transformers, options, kinds).to(self._device)
        phase("weights loaded")
        self._forward = self._model
        if options.compile:
            self._forward = torch.compile(self._model)
        self._names = _names(self._model)
        self._vocabulary, self._context = _sizes(self._model.config)
        self.facts = {
            "dtype": str(self._model.dtype).removeprefix("torch."),
            "device": str(self._device),
            "max length": str(self._context or ""),
            "attention": str(getattr(self._model.config, "_attn_implementation", "") or ""),
            "compiled": "yes" if options.compile else "no",
            "task": "classification" if _is_a(self._model, "SequenceClassification") else "embedding",
        }
        self.versions = devices.versions("torch", "transformers")
        self._call(self._prepared(self._ids(1, 8, 0)))
        self._wait()
        phase("compiled" if options.compile else "warmed up")

    def _prepared(self, ids: list[list[int]]) -> Any:
        tokens = self._torch.tensor(ids, device=self._device)
        made = {"input_ids": tokens, "attention_mask": self._torch.ones_like(tokens)}
        made["token_type_ids"] = self._torch.zeros_like(tokens)
        return {name: made[name] for name in self._names}

    def _call(self, inputs: Any) -> Any:
        with self._torch.inference_mode():
            return self._forward(**inputs)

    def _as_array(self, output: Any) -> Any:
        return _chosen(output).float().cpu().numpy()

    def _wait(self) -> None:
        devices.synchronise(self._torch, self._device)

    def _reset_memory(self) -> None:
        if self._device.type == "cuda":
            self._torch.cuda.reset_peak_memory_stats(self._device)

    def _memory(self) -> "int | None":
        if self._device.type == "cuda":
            return int(self._torch.cuda.max_memory_allocated(self._device))
        return super()._memory()

    def free_memory(self) -> None:
        devices.free_memory(self._torch)


class _OnnxEncoder(_Encoder):
    """An .onnx file, or a model that is exported to one first."""

    def __init__(self, options: Options, phase: Callable[[str], None]) -> None:
        runtime = importlib.import_module("onnxruntime")
        self._numpy = importlib.import_module("numpy")
        phase("imported")
        if options.compile:
            raise Unusable("`compile` is for torch: ONNX Runtime optimises its graph by itself")
        file, (self._vocabulary, self._context) = _onnx_file(options, phase)
        arguments = options.arguments()
        providers = arguments.pop("providers", None) or _providers(runtime, options.device)
        self._session = runtime.InferenceSession(str(file), _session_options(runtime, arguments), providers=providers)
        phase("weights loaded")
        if options.device and options.device.startswith("cuda") and "CUDA" not in self._session.get_providers()[0]:
            raise Unusable(f"device {options.device}: ONNX Runtime has no CUDA provider: install onnxruntime-gpu")
        self._names = {one.name: one.type for one in self._session.get_inputs()}
        if unknown := sorted(set(self._names) - set(_INPUTS)):
            raise Unusable(f"{file}: the input {unknown[0]} is not one of a text encoder: {', '.join(_INPUTS)}")
        self._output = next(
            (name for name in _OUTPUTS if name in [one.name for one in self._session.get_outputs()]),
            self._session.get_outputs()[0].name,
        )
        self.facts = {
            "dtype": _weights_type(self._session, self._output),
            "device": self._session.get_providers()[0].removesuffix("ExecutionProvider").lower(),
            "max length": str(self._context or ""),
            "provider": self._session.get_providers()[0],
        }
        self.versions = devices.versions("onnxruntime", "onnxruntime-gpu", "torch", "transformers")
        self._call(self._prepared(self._ids(1, 8, 0)))
        phase("warmed up")

    def _prepared(self, ids: list[list[int]]) -> Any:
        tokens = self._numpy.array(ids)
        made = {"input_ids": tokens, "attention_mask": self._numpy.ones_like(tokens)}
        made["token_type_ids"] = self._numpy.zeros_like(tokens)
        return {name: made[name].astype("int32" if "int32" in kind else "int64") for name, kind in self._names.items()}

    def _call(self, inputs: Any) -> Any:
        return self._session.run([self._output], inputs)[0]  # returns arrays on the CPU: it has waited

    def _as_array(self, output: Any) -> Any:
        return output.astype("float32")


def _pretrained(torch: Any, transformers: Any, options: Options, kinds: tuple[Any, Any]) -> Any:
    """The model as what it is asked for; `auto`: as a classifier if that is what its architecture is."""
    config = transformers.AutoConfig.from_pretrained(options.model)
    architectures = " ".join(getattr(config, "architectures", None) or ())
    is_classifier = options.task == "classification" or (
        options.task == "auto" and "SequenceClassification" in architectures
    )
    dtype = devices.dtype_of(torch, options.dtype) or "auto"
    arguments = options.arguments() if options.type == "torch" else {}
    return kinds[1 if is_classifier else 0].from_pretrained(options.model, dtype=dtype, **arguments).eval()


def _is_a(model: Any, words: str) -> bool:
    return words in type(model).__name__


def _names(model: Any) -> list[str]:
    inspect = importlib.import_module("inspect")
    parameters = inspect.signature(model.forward).parameters
    return [name for name in _INPUTS if name in parameters]


def _sizes(config: Any) -> tuple[int, int]:
    """Size of the vocabulary, and the longest sequence; 0: not known. RoBERTa's positions begin after its padding."""
    context = int(getattr(config, "max_position_embeddings", 0) or 0)
    if "roberta" in str(getattr(config, "model_type", "")) and context:
        context -= int(getattr(config, "pad_token_id", 0) or 0) + 1
    return int(getattr(config, "vocab_size", 0) or 1000), context


def _chosen(output: Any) -> Any:
    for name in _OUTPUTS:
        if getattr(output, name, None) is not None:
            return getattr(output, name)
    return output[0]


def _onnx_file(options: Options, phase: Callable[[str], None]) -> tuple[Path, tuple[int, int]]:
    """The file to run, and the sizes of its vocabulary and its context."""
    model = Path(options.model)
    if model.suffix == ".onnx":
        if not model.is_file():
            raise Unusable(f"{model}: there is no such file")
        return model, _stored_sizes(Path(options.config_of), model.parent)
    torch, transformers = importlib.import_module("torch"), importlib.import_module("transformers")
    kinds = (transformers.AutoModel, transformers.AutoModelForSequenceClassification)
    loaded = _pretrained(torch, transformers, options, kinds)
    file = Path(options.traces) / f"{options.type}-{options.dtype or 'model'}.onnx"
    file.parent.mkdir(parents=True, exist_ok=True)
    _export(torch, loaded, file)
    phase("exported")
    return file, _sizes(loaded.config)


def _stored_sizes(*folders: Path) -> tuple[int, int]:
    """The sizes that the first config.json says. All engines must get the same inputs, which depend on the vocabulary."""
    for folder in folders:
        if (folder / "config.json").is_file():
            config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            return _sizes(types.SimpleNamespace(**config))
    raise Unusable("the vocabulary of an .onnx file is not known: put the model's config.json beside it")


def _export(torch: Any, model: Any, file: Path) -> None:
    names = _names(model)
    tokens = torch.randint(_FIRST_TOKEN, _sizes(model.config)[0], (2, 8))
    made = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "token_type_ids": torch.zeros_like(tokens)}
    sizes = {0: "batch", 1: "length"}

    class First(torch.nn.Module):  # type: ignore[misc]
        """Returns the one output that is compared."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *given: Any) -> Any:
            return _chosen(self.model(**dict(zip(names, given))))  # noqa: B905

    output = "logits" if _is_a(model, "SequenceClassification") else "last_hidden_state"
    torch.onnx.export(
        First().eval(),
        tuple(made[name] for name in names),
        str(file),
        input_names=names,
        output_names=[output],
        dynamic_axes={name: sizes for name in names} | {output: {0: "batch"}},
        dynamo=False,
    )


def _providers(runtime: Any, device: "str | None") -> list[str]:
    has_gpu = "CUDAExecutionProvider" in runtime.get_available_providers()
    if device == "cpu" or not has_gpu:
        return ["CPUExecutionProvider"]
    return ["CUDAExecutionProvider", "CPUExecutionProvider"]


def _session_options(runtime: Any, arguments: dict[str, Any]) -> Any:
    """The flags are attributes of SessionOptions."""
    options = runtime.SessionOptions()
    for name, value in arguments.items():
        if not hasattr(options, name):
            raise Unusable(f"ONNX Runtime's SessionOptions have no {name}")
        setattr(options, name, value)
    return options


def _weights_type(session: Any, output: str) -> str:
    kinds = {one.name: one.type for one in session.get_outputs()}
    return {"tensor(float)": "float32", "tensor(float16)": "float16", "tensor(bfloat16)": "bfloat16"}.get(
        kinds[output], ""
    )
