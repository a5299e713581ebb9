"""The one schema. Field names are a contract; docs/config.md is generated from what stands here (config/reference.py)."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, field


class Seconds(float):
    """A duration in seconds; the file may say `10s`, `250ms` or `1m30s`."""


class Window(str):
    """How much to leave out at an end of the run: `0`, a count of requests, a duration (`5s`), or `auto`."""


Positive = Annotated[float, Meta(gt=0)]
Count = Annotated[int, Meta(ge=1)]


class _Section(msgspec.Struct, forbid_unknown_fields=True):
    """What every part of the file shares: an unknown key is an error."""


# --- server ----------------------------------------------------------------------------------------------------------


class TLS(_Section):
    verify: Annotated[bool, Meta(description="Check the server's certificate and name.")] = True
    ca: Annotated[str | None, Meta(description="PEM file of the CA to trust instead of the system's.")] = None
    cert: Annotated[
        str | None, Meta(description="PEM file of the client certificate (with its key, or see `key`).")
    ] = None
    key: Annotated[str | None, Meta(description="PEM file of the client certificate's key.")] = None


class Timeouts(_Section):
    connect: Annotated[Seconds, Meta(description="To open a connection, TLS included. 0 is none, as below.")] = Seconds(
        10
    )
    first_token: Annotated[Seconds, Meta(description="From sending a request to its first token.")] = Seconds(0)
    idle: Annotated[Seconds, Meta(description="Between two chunks of an answer.")] = Seconds(0)
    total: Annotated[Seconds, Meta(description="From sending a request to the end of its answer.")] = Seconds(600)


class Server(_Section):
    url: Annotated[
        str | list[str],
        Meta(
            description="Base URL, with or without `/v1`: `http://`, `https://`, or `grpc://`, `grpcs://` for gRPC. Several are served in turn."
        ),
    ]
    model: Annotated[str | None, Meta(description="Model to ask for. Default: the first that the server lists.")] = None
    api: Annotated[
        Literal["auto", "chat", "completions", "embeddings", "kserve", "kserve-json", "generate", "grpc"],
        Meta(
            description="OpenAI's `chat`, `completions` or `embeddings`; KServe v2 as Triton and others have it: `kserve` (binary tensors over HTTP, or gRPC by the URL), "
            "`kserve-json`, Triton's `generate`; `grpc`: any method of any gRPC service. `auto`: `chat` over HTTP, `kserve` over gRPC."
        ),
    ] = "auto"
    stream: Annotated[
        bool | None,
        Meta(
            description="Have the answer streamed: token by token; `generate_stream`; `ModelStreamInfer`. Default: yes for text, no for tensors."
        ),
    ] = None
    usage: Annotated[
        bool,
        Meta(
            description="Ask for token counts in the stream (`stream_options.include_usage`); off for servers that refuse it."
        ),
    ] = True
    ignore_eos: Annotated[
        bool,
        Meta(
            description="Send `ignore_eos: true`, which vLLM and others know, so that answers have the length asked for."
        ),
    ] = False
    max_tokens_field: Annotated[
        Literal["max_tokens", "max_completion_tokens"],
        Meta(description="The body field that limits the answer's length."),
    ] = "max_tokens"
    body: Annotated[
        dict[str, Any], Meta(description="More body fields, sent as they are: `{temperature: 0, top_p: 0.9}`.")
    ] = field(default_factory=dict)
    headers: Annotated[
        dict[str, str], Meta(description="More request headers (gRPC: metadata). Their values are not stored.")
    ] = field(default_factory=dict)
    api_key_env: Annotated[
        str | None, Meta(description="Environment variable that holds the API key. The key is not stored.")
    ] = None
    api_key_file: Annotated[str | None, Meta(description="File that holds the API key. The key is not stored.")] = None
    version: Annotated[str | None, Meta(description="KServe: the model's version. Default: the server's choice.")] = (
        None
    )
    parameters: Annotated[
        dict[str, bool | int | float | str], Meta(description="KServe: parameters of each inference request.")
    ] = field(default_factory=dict)
    outputs: Annotated[list[str], Meta(description="KServe: outputs to ask for. Default: all.")] = field(
        default_factory=list
    )
    compression: Annotated[
        Literal["none", "gzip", "deflate"],
        Meta(
            description="KServe and gRPC: how requests are compressed. Answers over HTTP are where `headers` has `accept-encoding`."
        ),
    ] = "none"
    shared_memory: Annotated[
        bool, Meta(description="KServe on the same machine: pass tensors through system shared memory.")
    ] = False
    deadline: Annotated[
        Seconds,
        Meta(
            description="gRPC: from sending a call to the end of its answer. It is sent along as `grpc-timeout`, and the client keeps it too: `grpc_DEADLINE_EXCEEDED`. 0 is none."
        ),
    ] = Seconds(0)
    method: Annotated[str | None, Meta(description="`api: grpc`: the method to call, `package.Service/Method`.")] = None
    proto: Annotated[
        str | None,
        Meta(
            description="`api: grpc`: a `.proto` file or a descriptor set. Default: asked of the server (reflection)."
        ),
    ] = None
    tls: Annotated[TLS, Meta(description="For https and grpcs URLs.")] = field(default_factory=TLS)
    timeouts: Annotated[Timeouts, Meta(description="Each ends the request as a failure with a code of its own.")] = (
        field(default_factory=Timeouts)
    )

    @property
    def urls(self) -> list[str]:
        return [self.url] if isinstance(self.url, str) else self.url


# --- data ------------------------------------------------------------------------------------------------------------


class Synthetic(_Section, tag_field="type", tag="synthetic"):
    """Prompts of exactly so many tokens, from a built-in corpus."""

    input: Annotated[Count, Meta(description="Tokens in each prompt.")] = 256
    output: Annotated[Count, Meta(description="Tokens wanted in each answer.")] = 128
    tokenizer: Annotated[
        str | None, Meta(description="Folder with a `tokenizer.json`, or that file. Default: the built-in one.")
    ] = None


class Prompts(_Section, tag_field="type", tag="prompts"):
    """These prompts, in turn."""

    prompts: Annotated[list[str], Meta(description="The prompts.", min_length=1)]
    output: Annotated[int, Meta(description="Tokens wanted in each answer; 0 leaves it to the server.", ge=0)] = 128
    tokenizer: Annotated[
        str | None, Meta(description="Counts tokens where the server does not. Default: the built-in one.")
    ] = None


class Jsonl(_Section, tag_field="type", tag="jsonl"):
    """A file with one JSON object a line: `{"prompt": "..."}` or `{"messages": [...]}`, with `output` if it varies."""

    path: Annotated[str, Meta(description="The file.")]
    output: Annotated[
        int, Meta(description="Tokens wanted in an answer whose line does not say; 0 leaves it to the server.", ge=0)
    ] = 128
    tokenizer: Annotated[
        str | None, Meta(description="Counts tokens where the server does not. Default: the built-in one.")
    ] = None


class TensorInput(_Section):
    """One of a model's inputs."""

    name: Annotated[str, Meta(description="Its name.")]
    datatype: Annotated[str, Meta(description="BOOL, INT8 ... UINT64, FP16, BF16, FP32, FP64, BYTES.")]
    shape: Annotated[list[int], Meta(description="Its sizes, with -1 where any will do.")]


class Tensors(_Section, tag_field="type", tag="tensors"):
    """Tensors for a model behind KServe v2, made from its metadata."""

    fill: Annotated[
        str,
        Meta(
            description='`zeros`, `random`, or `"@FILE"` (YAML wants the quotes): a `.npy` or `.npz`, or a JSON file as perf_analyzer\'s `--input-data` takes it, or as it does a folder with a file for each input: '
            "raw numbers, or a string a line."
        ),
    ] = "random"
    shape: Annotated[
        dict[str, list[int]],
        Meta(description="Full shapes by input, batch included: `{INPUT0: [1, 1000]}`. Default: a dynamic size is 1."),
    ] = field(default_factory=dict)
    batch: Annotated[
        Count,
        Meta(description="The batch size, where the model takes batches. Where `shape` has one too, it is the same."),
    ] = 1
    sequence: Annotated[
        Annotated[int, Meta(ge=0)] | Literal["streams"],
        Meta(
            description="Requests of a sequence, with one correlation id and start and end flags; a closed loop's users each run one at a time. `streams`: each list in the JSON file is a sequence of its own length; so it is by itself where the model keeps sequences. 0: none."
        ),
    ] = 0
    inputs: Annotated[list[TensorInput], Meta(description="What the model takes. Default: asked of the server.")] = (
        field(default_factory=list)
    )


class Messages(_Section, tag_field="type", tag="messages"):
    """Messages for a gRPC method, in turn: JSON, or bytes."""

    messages: Annotated[list[Any], Meta(description="Each a request as JSON; a list in it is a stream of several.")] = (
        field(default_factory=list)
    )
    path: Annotated[
        str | None, Meta(description="A file with one JSON request a line, or (`.bin`) one encoded message.")
    ] = None


Data = Synthetic | Prompts | Jsonl | Tensors | Messages


# --- load ------------------------------------------------------------------------------------------------------------


class _Stage(_Section, tag_field="type", kw_only=True):
    name: Annotated[str, Meta(description="What reports call it. Default: its place, type and level.")] = ""
    stable: Annotated[
        float,
        Meta(
            description="End as soon as three windows in a row agree, and count only those: the highest throughput and mean latency are at most this share "
            "above the lowest (perf_analyzer's rule; it takes 0.1). `duration` is then the most it may take (default: 10 windows), and a stage that never "
            "became stable makes the run INVALID. 0: off.",
            ge=0,
        ),
    ] = 0.0
    window: Annotated[
        Seconds, Meta(description="`stable`: how long a window is. The first begins with the first answer.")
    ] = Seconds(5)


class _Open(_Stage, tag_field="type"):
    duration: Annotated[Seconds, Meta(description="How long requests are sent.")] = Seconds(0)
    requests: Annotated[
        int, Meta(description="How many are sent (instead of `duration`, or to end earlier).", ge=0)
    ] = 0
    max_concurrency: Annotated[int, Meta(description="Requests in flight at the most; 0 is no cap.", ge=0)] = 0
    when_full: Annotated[
        Literal["queue", "drop"],
        Meta(
            description="At the cap: wait, charged to the request; or drop, which is a row and makes the run INVALID."
        ),
    ] = "queue"


class Constant(_Open, kw_only=True, tag="constant"):
    """Requests at equal distances."""

    rate: Annotated[
        Positive, Meta(description='Requests a second. `"100:500:100"` (start:end[:step]): a stage for each.')
    ]


class Poisson(_Open, kw_only=True, tag="poisson"):
    """Independent arrivals: exponential gaps."""

    rate: Annotated[
        Positive,
        Meta(description='Requests a second, on average. `"100:500:100"` (start:end[:step]): a stage for each.'),
    ]


class Gamma(_Open, kw_only=True, tag="gamma"):
    """Gamma-distributed gaps: burstier than Poisson below 1, smoother above."""

    rate: Annotated[
        Positive,
        Meta(description='Requests a second, on average. `"100:500:100"` (start:end[:step]): a stage for each.'),
    ]
    burstiness: Annotated[Positive, Meta(description="The shape of the gamma distribution; 1 is Poisson.")] = 1.0


Arrivals = Literal["constant", "poisson"]
_ARRIVALS = Meta(description="How requests lie around the rate: evenly, or as a Poisson process.")


class Ramp(_Open, kw_only=True, tag="ramp"):
    """A rate that goes linearly from one value to another over `duration`."""

    start: Annotated[float, Meta(description="Requests a second at the start.", ge=0)] = 0.0
    end: Annotated[Positive, Meta(description="Requests a second at the end.")]
    arrivals: Annotated[Arrivals, _ARRIVALS] = "poisson"


class Steps(_Open, kw_only=True, tag="steps"):
    """One rate after another, each for an equal part of `duration`."""

    rates: Annotated[list[Positive], Meta(description="Requests a second, step by step.", min_length=1)]
    arrivals: Annotated[Arrivals, _ARRIVALS] = "poisson"


class Bursts(_Open, kw_only=True, tag="bursts"):
    """On and off in turn, starting with on."""

    rate: Annotated[Positive, Meta(description="Requests a second while on.")]
    idle_rate: Annotated[float, Meta(description="Requests a second while off.", ge=0)] = 0.0
    on: Annotated[Seconds, Meta(description="How long it is on.")]
    off: Annotated[Seconds, Meta(description="How long it is off.")]
    arrivals: Annotated[Arrivals, _ARRIVALS] = "poisson"


class Closed(_Stage, tag_field="type", tag="closed"):
    """So many users, each asking again when its answer is complete."""

    concurrency: Annotated[
        Count, Meta(description='Requests in flight. `"1:8:2"` (start:end[:step], end included): a stage for each.')
    ] = 16
    requests: Annotated[
        int,
        Meta(
            description="Ends after so many; without a duration also when the server could not be reached for 30 s.",
            ge=0,
        ),
    ] = 0
    duration: Annotated[Seconds, Meta(description="Ends after so long (requests in flight are finished).")] = Seconds(0)
    ramp_up: Annotated[Seconds, Meta(description="The users start evenly over this time.")] = Seconds(0)
    think: Annotated[Seconds, Meta(description="A user's pause between an answer and the next request.")] = Seconds(0)


StageSpec = Constant | Poisson | Gamma | Ramp | Steps | Bursts | Closed


class Stages(_Section, tag_field="type", tag="stages"):
    """Several loads in a row."""

    stages: Annotated[list[StageSpec], Meta(description="The loads, each as it would stand alone.", min_length=1)]


Load = StageSpec | Stages


def stages_of(load: Load) -> list[StageSpec]:
    """Its loads in a row, one or several."""
    return load.stages if isinstance(load, Stages) else [load]


# --- the rest --------------------------------------------------------------------------------------------------------


class Client(_Section):
    processes: Annotated[
        Annotated[int, Meta(ge=0)] | Literal["auto"],
        Meta(
            description="Client processes; `auto`: what the load needs, at most the cores less one. 0: in this process."
        ),
    ] = "auto"
    connections: Annotated[
        Annotated[int, Meta(ge=0)] | Literal["auto"],
        Meta(
            description="Opened before t=0. `auto`: the concurrency, or 1 for every 2 requests a second, at most 1,024."
        ),
    ] = "auto"
    warm: Annotated[
        bool,
        Meta(
            description="Use each of them once before t=0, for something cheap (`GET /v1/models`, `GET /v2/health/live`; over gRPC settings are exchanged anyway)."
        ),
    ] = False
    grace: Annotated[Seconds, Meta(description="How long requests in flight may still finish after Ctrl-C.")] = Seconds(
        5
    )
    stamps: Annotated[
        Literal["kernel", "user"], Meta(description="Arrival stamps by the kernel where it can, or taken when read.")
    ] = "kernel"


class Measure(_Section):
    warmup: Annotated[
        Window, Meta(description="Left out at the start: a count of requests, a duration, or `auto`.")
    ] = Window("0")
    cooldown: Annotated[Window, Meta(description="Left out at the end, likewise.")] = Window("0")
    failures_as_inf: Annotated[
        bool, Meta(description="Count failed requests as infinitely slow in the latency percentiles.")
    ] = False


class Limits(_Section):
    """What a run must keep to be VALID."""

    lag: Annotated[
        Seconds,
        Meta(
            description="Open loop: p99 of how late the client sent (0.5 % of the median time to first token is allowed too)."
        ),
    ] = Seconds(0.00025)
    cpu: Annotated[float, Meta(description="Share of a core that one client process may use.", gt=0, le=1)] = 0.9
    stalls: Annotated[
        float,
        Meta(description="Share of the run in which the client's loop stood still for 10 ms and more.", ge=0, le=1),
    ] = 0.01
    memory: Annotated[float, Meta(description="Share of the machine's memory that may be in use.", gt=0, le=1)] = 0.95
    clock_step: Annotated[Seconds, Meta(description="How far the wall clock may step.")] = Seconds(0.001)
    failures: Annotated[float, Meta(description="Share of the requests that may fail.", ge=0, le=1)] = 0.01


class Config(_Section):
    server: Annotated[Server, Meta(description="What is measured.")]
    data: Annotated[Data, Meta(description="What is asked.")] = field(default_factory=Synthetic)
    load: Annotated[Load, Meta(description="When it is asked.")] = field(
        default_factory=lambda: Closed(duration=Seconds(30))
    )
    client: Annotated[Client, Meta(description="Who asks.")] = field(default_factory=Client)
    measure: Annotated[Measure, Meta(description="What counts.")] = field(default_factory=Measure)
    limits: Annotated[Limits, Meta(description="What a run must keep to be VALID.")] = field(default_factory=Limits)
    seed: Annotated[int, Meta(description="Everything random in the plan and the prompts comes from it.", ge=0)] = 0
    output: Annotated[str, Meta(description="Folder under which each run gets a folder of its own.")] = "runs"
