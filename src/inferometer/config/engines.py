"""The file of `inferometer engines`: a model, several engines to serve it, and one workload for all of them.

The sections that `inferometer run` has as well (data, load, slo, server, client, measure, limits, observe, cost, seed, output) mean the
same here and stay plain trees: each level of each engine makes a Config of its own from them (`level_config`).
"""

import itertools
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, field

from inferometer.config.convert import copied, quantity
from inferometer.config.fields import Count, Positive, Seconds, Section
from inferometer.config.load import from_mapping, overridden
from inferometer.config.ranges import expand, level_key
from inferometer.config.schema import Config
from inferometer.errors import UserError, named

_MAX_ENGINES = 64
_ANY_URL = "http://127.0.0.1:1"
"""Stands for the URL of an engine that is not started yet, when the file is checked."""
_INTERVAL = "500ms"
"""Between two samples of the use of resources: levels of a comparison are short."""


class EngineSpec(Section, kw_only=True):
    """One engine: how to start or load it. A list as the value of a flag makes a variant for each of its values."""

    type: Annotated[str, Meta(description="The kind of engine: `vllm`, `sglang`, `transformers`, `tgi`, `llamacpp`, `triton`, `openvino`, `onnxruntime`, `torch`, `inferometer` or `command`.")]  # fmt: skip
    name: Annotated[str, Meta(description="Name in reports. Default: the type, the mode, and what differs between variants.")] = ""  # fmt: skip
    mode: Annotated[str, Meta(description="How the engine is used. `serve`: a server process (the default, if the engine has one). In a process of its own, without a server: `serial`, one request at a time; `batched`, static batches of `batch`; `continuous`, continuous batching.")] = ""  # fmt: skip
    model: Annotated[str | None, Meta(description="The model for this engine, if it needs another file than the others: a GGUF file, or a converted folder.")] = None  # fmt: skip
    args: Annotated[dict[str, Any], Meta(description="Flags of the engine, without dashes: `{max-num-seqs: 32}`. true is a flag without a value, false leaves it out, a list makes variants. In-process engines get them as arguments of their constructor.")] = field(default_factory=dict)  # fmt: skip
    env: Annotated[dict[str, str], Meta(description="Additional environment variables. Their values are not stored.")] = field(default_factory=dict)  # fmt: skip
    batch: Annotated[Count | list[Count] | None, Meta(description="`mode: batched`: the batch sizes to measure. Default: the levels of `load.concurrency`.")] = None  # fmt: skip
    sort: Annotated[bool, Meta(description="`mode: batched`: sort the requests by the length of their prompts before they are put into batches, which wastes less on padding.")] = False  # fmt: skip
    dtype: Annotated[str | None, Meta(description="Data type of the weights: `float32`, `bfloat16`, `float16`. Default: the model's.")] = None  # fmt: skip
    device: Annotated[str | None, Meta(description="`cpu`, `cuda` or `cuda:1`. Default: a GPU if there is one.")] = None
    compile: Annotated[bool, Meta(description="Compile the model with torch.compile (type `torch` and in-process transformers).")] = False  # fmt: skip
    command: Annotated[str | None, Meta(description="Type `command`: the shell command that starts the server. `{port}` and `{model}` are replaced. Without it, the server at `url` must be running already, and is left running.")] = None  # fmt: skip
    url: Annotated[str | None, Meta(description="Base URL of the server. Default: a free port of this machine.")] = None
    ready: Annotated[str | None, Meta(description="Path that responds with a 2xx status when the server is ready: `/health`. Default: that of the engine. A first good response is required in any case.")] = None  # fmt: skip
    executable: Annotated[str | None, Meta(description="The program to start, if it is not on the PATH: `~/vllm/bin/vllm`.")] = None  # fmt: skip
    python: Annotated[str | None, Meta(description="The Python interpreter whose packages an in-process engine uses: `~/vllm/bin/python`. Default: the one that runs inferometer.")] = None  # fmt: skip
    server: Annotated[dict[str, Any], Meta(description="Keys of the `server` section for this engine, over those of the file.")] = field(default_factory=dict)  # fmt: skip


class Agreement(Section):
    """The comparison of the engines' outputs."""

    samples: Annotated[int, Meta(description="Number of prompts of the workload that every engine completes greedily. 0: outputs are not compared.", ge=0)] = 8  # fmt: skip
    tokens: Annotated[Count, Meta(description="Number of tokens of each output.")] = 32
    reference: Annotated[str | None, Meta(description="Name of the engine that the others are compared with. Default: transformers, one request at a time, if it takes part; else the first engine that has outputs.")] = None  # fmt: skip
    least: Annotated[float, Meta(description="Share of tokens that must be the reference's. An engine below it cannot be recommended.", ge=0, le=1)] = 0.5  # fmt: skip


class Startup(Section):
    timeout: Annotated[Seconds, Meta(description="How long an engine may take until its first good response.")] = Seconds(600)  # fmt: skip
    repeat: Annotated[Count, Meta(description="How often each engine is started. Before the first start, the model's files are dropped from the page cache (cold); the later ones are warm.")] = 1  # fmt: skip


class Profile(Section):
    """Where to run the engine's own profiler: for one level of one engine. That level is not part of the comparison."""

    engine: Annotated[str, Meta(description="Name of the engine.")]
    level: Annotated[Count, Meta(description="The concurrency or batch size to profile.")]
    start: Annotated[str | None, Meta(description="URL path to POST to, or shell command to run, before the level. Default: what the engine offers.")] = None  # fmt: skip
    stop: Annotated[str | None, Meta(description="The same, after the level.")] = None


class Device(Section):
    """The device's peaks, for the utilisation. Default: looked up by the name of the GPU."""

    tflops: Annotated[Positive | None, Meta(description="Dense floating-point operations at the engines' data type, in 10^12 per second.")] = None  # fmt: skip
    bandwidth: Annotated[Positive | None, Meta(description="Memory bandwidth in GB/s.")] = None


class Encoder(Section):
    """Measure an encoder (classification, embeddings): the latency of a forward pass by batch size and sequence length."""

    batch: Annotated[list[Count], Meta(description="Batch sizes.", min_length=1)] = field(default_factory=lambda: [1, 8])  # fmt: skip
    length: Annotated[list[Count], Meta(description="Sequence lengths in tokens.", min_length=1)] = field(default_factory=lambda: [32, 128])  # fmt: skip
    measurements: Annotated[Count, Meta(description="Measured calls for each batch size and length.")] = 50
    warmup: Annotated[int, Meta(description="Calls before them that are not measured.", ge=0)] = 10
    tolerance: Annotated[float, Meta(description="Largest difference of an output from the reference's, relative to the largest magnitude of the reference.", ge=0)] = 0.05  # fmt: skip
    task: Annotated[Literal["auto", "embedding", "classification"], Meta(description="What the model is loaded as. `auto`: by its architecture.")] = "auto"  # fmt: skip


def _same(section: str, more: str = "") -> Meta:
    """The description of a section that `inferometer run` has, too."""
    return Meta(description=f"As in [the configuration file](config.md#{section}){more}.")


class Campaign(Section, kw_only=True):
    """The whole file."""

    model: Annotated[str, Meta(description="The model that every engine serves: a folder, a file, or a name on the hub.")]  # fmt: skip
    engines: Annotated[list[EngineSpec], Meta(description="The engines.", min_length=1)]
    repeat: Annotated[Count, Meta(description="Rounds of the whole comparison: every engine is measured once per round, so that a machine that becomes slower favours none of them.")] = 1  # fmt: skip
    warmup: Annotated[int, Meta(description="Requests to each engine before its first level, which are not measured.", ge=0)] = 4  # fmt: skip
    startup: Annotated[Startup, Meta(description="How engines are started.")] = field(default_factory=Startup)
    agreement: Annotated[Agreement, Meta(description="Whether the outputs agree.")] = field(default_factory=Agreement)
    profile: Annotated[Profile | None, Meta(description="Run an engine's own profiler for one level.")] = None
    device: Annotated[Device, Meta(description="What the hardware can do at most.")] = field(default_factory=Device)
    encoder: Annotated[Encoder | None, Meta(description="Measure an encoder instead of a text generator; `data`, `load` and `slo` do not apply then.")] = None  # fmt: skip
    server: Annotated[dict[str, Any], _same("server", ", for all engines: `api`, `body`, `ignore_eos`, `timeouts` ...")] = field(default_factory=dict)  # fmt: skip
    data: Annotated[dict[str, Any], _same("data")] = field(default_factory=dict)
    load: Annotated[dict[str, Any], _same("load", ". Its levels are those of the comparison. Default: `{type: closed, concurrency: [1, 8], requests: 64}`")] = field(default_factory=lambda: {"type": "closed", "concurrency": [1, 8], "requests": 64})  # fmt: skip
    client: Annotated[dict[str, Any], _same("client")] = field(default_factory=dict)
    measure: Annotated[dict[str, Any], _same("measure")] = field(default_factory=dict)
    limits: Annotated[dict[str, Any], _same("limits")] = field(default_factory=dict)
    observe: Annotated[dict[str, Any], _same("observe")] = field(default_factory=dict)
    cost: Annotated[dict[str, Any], _same("cost")] = field(default_factory=dict)
    slo: Annotated[str | list[str], Meta(description="What interactive use requires: see [Service level objectives](slo.md).")] = field(default_factory=list)  # fmt: skip
    seed: Annotated[int, Meta(description="Seed of everything random in the plan and the prompts.", ge=0)] = 0
    output: Annotated[str, Meta(description="Folder in which each campaign creates its own folder.")] = "runs"


class Level(msgspec.Struct, frozen=True):
    """One load that engines are measured at."""

    by: Literal["concurrency", "batch", "rate"]
    value: float

    @property
    def name(self) -> str:
        return f"{self.by} {self.value:g}"


def campaign_from(tree: dict[str, Any], overrides: Iterable[str] = (), source: str = "config") -> Campaign:
    """The campaign that a file describes. Raises UserError with the key at fault."""
    with named(source=source, fallback="see `inferometer docs choose-an-engine`"):
        tree = overridden(tree, overrides)
        try:
            campaign = msgspec.convert(tree, Campaign, dec_hook=quantity)
        except msgspec.ValidationError as error:
            raise _explained(error) from None
        if campaign.encoder is None:
            levels = levels_of(campaign)
            for level in levels:
                level_config(campaign, level, {"url": _ANY_URL}, "check", 0)
            for spec in campaign.engines:
                api = {"api": "kserve"} if spec.type == "triton" else {}
                level_config(campaign, levels[0], {"url": _ANY_URL, "model": "any"} | api | spec.server, "check", 0)
        return campaign


def _explained(error: msgspec.ValidationError) -> UserError:
    what, _, where = str(error).partition(" - at `$")
    key = where.rstrip("`").replace("[", ".").replace("]", "").lstrip(".")
    return UserError(what.replace("Object ", ""), "see `inferometer engines --help`", key or "the file")


# --- variants --------------------------------------------------------------------------------------------------------


def variants(campaign: Campaign) -> list[EngineSpec]:
    """The engines with every list of flags resolved, each with a name of its own."""
    found = [each for spec in campaign.engines for each in _variants(spec)]
    if len(found) > _MAX_ENGINES:
        raise UserError(f"{len(found)} engines, more than {_MAX_ENGINES}", "use fewer variants", "engines")
    names = [spec.name for spec in found]
    for index, spec in enumerate(found):
        if names.count(spec.name) > 1:
            spec.name = f"{spec.name} #{names[: index + 1].count(spec.name)}"
    return found


def _variants(spec: EngineSpec) -> Iterator[EngineSpec]:
    lists = {name: value for name, value in spec.args.items() if isinstance(value, list)}
    base = spec.name or " ".join(filter(None, (spec.type, spec.mode, spec.dtype, "compiled" if spec.compile else "")))
    if any(not values for values in lists.values()):
        raise UserError("a list of values for a flag is empty", "give a value, or several", "engines.args")
    for values in itertools.product(*lists.values()):
        chosen = dict(zip(lists, values, strict=True))
        words = [f"{name}={value}" for name, value in chosen.items()]
        yield msgspec.structs.replace(spec, args=spec.args | chosen, name=" ".join([base, *words]))


# --- levels ----------------------------------------------------------------------------------------------------------


def levels_of(campaign: Campaign, spec: EngineSpec | None = None) -> list[Level]:
    """The levels of the load; of an in-process engine, they are batch sizes."""
    by, values = _loads(campaign)
    if spec is None or not is_in_process(spec):
        return [Level(by, value) for value in values]
    if by == "rate":
        raise UserError("an engine without a server cannot be measured at a rate", "use load.concurrency", "load")
    if spec.mode == "serial":
        return [Level("batch", 1)]
    given = spec.batch if spec.mode == "batched" and spec.batch is not None else [int(value) for value in values]
    return [Level("batch", value) for value in ([given] if isinstance(given, int) else given)]


def is_in_process(spec: EngineSpec) -> bool:
    """Whether the engine is used as a library, without a server."""
    return spec.mode in ("serial", "batched", "continuous")


def _loads(campaign: Campaign) -> tuple[Literal["concurrency", "rate"], list[float]]:
    key = level_key(campaign.load)
    if key not in ("concurrency", "rate"):
        raise UserError("the load of a comparison has levels", "use type closed with concurrency, or a rate", "load")
    tree: dict[str, Any] = {"load": copied(campaign.load)}
    tree["load"].setdefault("type", "poisson" if key == "rate" else "closed")
    expand(tree)
    stages = tree["load"].get("stages", [tree["load"]])
    values = [stage.get(key, 16) for stage in stages]
    if not all(isinstance(value, int | float) and 0 < value < math.inf for value in values):
        raise UserError(f"levels are numbers of more than 0, got {values}", "write [1, 8, 64]", f"load.{key}")
    return ("rate" if key == "rate" else "concurrency"), values


def level_config(campaign: Campaign, level: Level, server: dict[str, Any], salt: str, repeat: int) -> Config:
    """The config of one level of one engine.

    All engines get the same prompts: they depend on the seed and on `salt`, which differs between levels and repeats, so that no level
    finds what an earlier one left in a prefix cache.
    """
    key = "rate" if level.by == "rate" else "concurrency"
    load = copied(campaign.load) | {key: level.value if key == "rate" else int(level.value)}
    tree: dict[str, Any] = {
        "server": copied(campaign.server) | server,
        "data": copied(campaign.data),
        "load": load,
        "client": copied(campaign.client),
        "measure": copied(campaign.measure),
        "limits": copied(campaign.limits),
        "observe": {"interval": _INTERVAL} | copied(campaign.observe),
        "cost": copied(campaign.cost),
        "slo": copied(campaign.slo),
        "seed": campaign.seed + repeat,
        "output": campaign.output,
    }
    if not tree["data"].get("tokenizer") and Path(campaign.model, "tokenizer.json").is_file():
        tree["data"]["tokenizer"] = campaign.model
    config = from_mapping({name: value for name, value in tree.items() if value not in ({}, [])})
    if getattr(config.data, "salt", None) == "run":
        config = msgspec.structs.replace(config, data=msgspec.structs.replace(config.data, salt=salt))
    return config
