"""What a campaign stores about its engines: the layout of campaign.json.

It is written after every part that is finished, so that a campaign that was interrupted or killed can be reported as far as it came, and
resumed. The figures themselves are in the runs, in folders beside it.
"""

from typing import Any, Literal

import msgspec

SCHEMA = 1

Status = Literal["pending", "ok", "failed"]
Cache = Literal["", "salted", "reset", "shared"]
Reason = Literal["", "not installed", "port taken", "not ready", "died", "out of memory", "no good response", "failed"]


class Output(msgspec.Struct, frozen=True):
    """What an engine generated greedily for one prompt of the sample."""

    text: str
    ids: tuple[int, ...] | None = None
    """The token ids, if the engine reports them."""
    error: str = ""
    """Why there is no output."""


class StartUp(msgspec.Struct, frozen=True, kw_only=True):
    """One start of an engine: seconds since its process was started; None for what is not known."""

    is_cold: bool
    """Whether it was the first start of the campaign: the model's files were dropped from the page cache before."""
    dropped_cache: bool = False
    """Whether that could be done: the model is a folder or a file of this machine."""
    phases: dict[str, float] = {}
    """When each phase was complete: imported, weights loaded, compiled, graphs captured ..., in the words of milestones.py."""
    ready: float | None = None
    """When the health check passed. In-process engines: when the model was loaded."""
    first_token: float | None = None
    """When the first token of the first response arrived; the end of the response, if the engine does not stream."""


class LevelRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One measured level of one engine in one round."""

    by: Literal["concurrency", "batch", "rate"]
    level: float
    repeat: int = 0
    run: str = ""
    """Name of the run's folder; empty if it could not be measured."""
    error: str = ""
    """Why it could not be measured, or what is wrong with it."""
    is_profiled: bool = False
    """Whether the engine's profiler was on: such a level is not part of the comparison."""
    padding: float | None = None
    """Static batches: the share of the processed tokens that was padding."""
    cache: Cache = ""
    """What kept earlier levels out of the prefix cache: other prompts, or a reset. `shared`: nothing did."""


class EncoderLevel(msgspec.Struct, frozen=True, kw_only=True):
    """The calls of an encoder at one batch size and sequence length."""

    batch: int
    length: int
    repeat: int = 0
    seconds: tuple[float, ...] = ()
    """Duration of each measured call."""
    difference: float | None = None
    """Largest absolute difference of an output from the reference's, relative to the reference's largest magnitude; None: not compared."""
    error: str = ""
    energy: float | None = None
    """Joules of all GPUs over all calls."""
    memory: int | None = None
    """Peak memory of the device in bytes; on a CPU, of the process."""


class EngineRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One engine of the campaign."""

    name: str
    type: str
    mode: str
    settings: dict[str, Any] = {}
    """Its entry in the file, without the values of environment variables."""
    status: Status = "pending"
    reason: Reason = ""
    message: str = ""
    """Why it failed: one line, with what to do next."""
    log_tail: tuple[str, ...] = ()
    """Its last output, if it failed."""
    log: str = ""
    """Name of its log in the campaign's folder."""
    version: str = ""
    starts: tuple[StartUp, ...] = ()
    facts: dict[str, str] = {}
    """What must be the same for a fair comparison, as far as it is known: dtype, max length, prefix cache, speculation, chat template,
    device, parallelism. Missing: not known."""
    outputs: tuple[Output, ...] = ()
    """Its completions of the sample."""
    levels: tuple[LevelRecord, ...] = ()
    encoder: tuple[EncoderLevel, ...] = ()


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the model's files say; None for what is not known."""

    name: str
    architecture: str = ""
    parameters: int | None = None
    """All weights; of a mixture of experts too."""
    active_parameters: int | None = None
    """Those that a token passes through."""
    bytes: int | None = None
    """Size of the weights as stored."""
    dtype: str = ""
    layers: int | None = None
    hidden: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_size: int | None = None
    vocabulary: int | None = None
    is_tied: bool | None = None
    """Whether the output layer's weights are those of the embeddings."""
    context: int | None = None


class DeviceFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The device that the engines run on."""

    name: str = ""
    """Of the GPU, or of the processor."""
    count: int = 1
    tflops: float | None = None
    """Its dense peak at the model's data type, in 10^12 operations per second; None: not known."""
    bandwidth: float | None = None
    """Its memory bandwidth in GB/s; None: not known."""
    source: str = ""
    """Where the peaks come from: the file, or the table in devices.py."""


class CampaignRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The layout of campaign.json."""

    schema: int = SCHEMA
    inferometer: str
    started: str
    digest: str
    """Of the file: a campaign is resumed with the same one only."""
    campaign: dict[str, Any]
    """The file, with secrets removed."""
    model: ModelFacts
    device: DeviceFacts = DeviceFacts()
    sample: tuple[str, ...] = ()
    """The prompts of the sample."""
    engines: tuple[EngineRecord, ...] = ()
    interrupted: bool = False
