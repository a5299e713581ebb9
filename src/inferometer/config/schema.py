"""The schema of the config. Field names are a contract; docs/reference/config.md is generated from them (config/reference.py).

The sections `data` and `load`, which have many kinds, are in data.py and loads.py.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, field

from inferometer.config.abort import Abort
from inferometer.config.cost import Cost
from inferometer.config.data import Data, Synthetic
from inferometer.config.data.sessions import Sessions
from inferometer.config.fields import Seconds, Section, Window
from inferometer.config.fleet import Fleet
from inferometer.config.loads import Closed, Load
from inferometer.config.observe import Export, Observe
from inferometer.config.report import Report
from inferometer.config.storage import Storage

# --- server ----------------------------------------------------------------------------------------------------------


class TLS(Section):
    verify: Annotated[bool, Meta(description="Verify the server's certificate and name.")] = True
    ca: Annotated[str | None, Meta(description="PEM file of the CA to trust instead of the system's CAs.")] = None
    cert: Annotated[
        str | None, Meta(description="PEM file of the client certificate (with its key, or see `key`).")
    ] = None
    key: Annotated[str | None, Meta(description="PEM file of the client certificate's key.")] = None


class Timeouts(Section):
    connect: Annotated[
        Seconds, Meta(description="For opening a connection, including TLS. 0 means no limit, here and below.")
    ] = Seconds(10)
    first_token: Annotated[Seconds, Meta(description="From sending a request to its first token.")] = Seconds(0)
    idle: Annotated[Seconds, Meta(description="Between two chunks of a response.")] = Seconds(0)
    total: Annotated[Seconds, Meta(description="From sending a request to the end of its response.")] = Seconds(600)
    unreached: Annotated[
        Seconds,
        Meta(
            description="Time without any connection after which a closed loop that only a number of requests ends is given up."
        ),
    ] = Seconds(30)


class Timing(Section):
    queue: Annotated[str, Meta(description="Name of the time that the request waited in the server.")] = ""
    compute: Annotated[str, Meta(description="Name of the time that the server computed.")] = ""
    total: Annotated[str, Meta(description="Name of the time from receiving the request to sending the response.")] = ""


class Server(Section):
    url: Annotated[
        str | list[str],
        Meta(
            description="Base URL, with or without `/v1`: `http://`, `https://`, or `grpc://`, `grpcs://` for gRPC. Without a scheme, `host:8000` is tried as both. Several URLs are used in turn."
        ),
    ]
    model: Annotated[str | None, Meta(description="Model to measure. Default: the first that the server lists.")] = None
    api: Annotated[
        Literal["auto", "chat", "completions", "messages", "embeddings", "kserve", "kserve-json", "generate", "grpc"],
        Meta(
            description="OpenAI's `chat`, `completions` or `embeddings`; Anthropic's `messages`; KServe v2, as implemented by Triton and others: `kserve` (binary tensors over HTTP, or gRPC by the URL) or "
            "`kserve-json`; Triton's `generate`; `grpc`: any method of any gRPC service. `auto`: `kserve` over gRPC, for `data.type: tensors` and `images`, and without `data` for a server that has `/v2` and lists no models under `/v1/models`; else `chat`."
        ),
    ] = "auto"
    stream: Annotated[
        bool | Literal["persistent"] | None,
        Meta(
            description="Stream the response: token by token, with `generate_stream`, or with `ModelStreamInfer`. `persistent`: KServe over gRPC keeps a `ModelStreamInfer` stream open per user and sends one request after the other over it; in open loop, requests go over idle streams. Default: true for text, false for everything else."
        ),
    ] = None
    usage: Annotated[
        bool,
        Meta(
            description="Request token counts in the stream (`stream_options.include_usage`). Set it to false for servers that reject this."
        ),
    ] = True
    ignore_eos: Annotated[
        bool,
        Meta(
            description="Send `ignore_eos: true`, which vLLM and others support, so that responses have the requested length."
        ),
    ] = False
    max_tokens_field: Annotated[
        Literal["max_tokens", "max_completion_tokens"],
        Meta(description="The body field that limits the length of the response."),
    ] = "max_tokens"
    body: Annotated[
        dict[str, Any], Meta(description="Additional body fields, sent unchanged: `{temperature: 0, top_p: 0.9}`.")
    ] = field(default_factory=dict)
    headers: Annotated[
        dict[str, str],
        Meta(
            description="Additional request headers (gRPC: metadata). Their values are not stored. Responses that come as gzip or deflate, for which `accept-encoding: gzip` asks, are decompressed."
        ),
    ] = field(default_factory=dict)
    api_key_env: Annotated[
        str | None, Meta(description="Environment variable that holds the API key. The key is not stored.")
    ] = None
    api_key_file: Annotated[str | None, Meta(description="File that holds the API key. The key is not stored.")] = None
    version: Annotated[str | None, Meta(description="KServe: version of the model. Default: the server's choice.")] = (
        None
    )
    parameters: Annotated[
        dict[str, bool | int | float | str], Meta(description="KServe: parameters of each inference request.")
    ] = field(default_factory=dict)
    timing: Annotated[
        Timing,
        Meta(
            description="Names of the server's own times in its responses, for servers without Server-Timing: a response parameter (KServe), or a field of the JSON or of the gRPC method's message, within others with dots: `{compute: stats.server_us}`. The unit is the end of the name (`_s`, `_ms`, `_us`, `_ns`) or given after it (`{total: total_duration ns}`), else ms. Of several messages, the last one that has them counts."
        ),
    ] = field(default_factory=Timing)
    outputs: Annotated[list[str], Meta(description="KServe: outputs to request. Default: all.")] = field(
        default_factory=list
    )
    compression: Annotated[
        Literal["none", "gzip", "deflate"],
        Meta(
            description="KServe and gRPC: compression of requests. To get compressed responses over HTTP, put `accept-encoding` into `headers`."
        ),
    ] = "none"
    shared_memory: Annotated[
        bool, Meta(description="KServe on the same machine: pass tensors through system shared memory.")
    ] = False
    deadline: Annotated[
        Seconds,
        Meta(
            description="gRPC: time limit from sending a call to the end of its response. It is sent as `grpc-timeout` and also enforced by the client, as `grpc_DEADLINE_EXCEEDED`. 0 means no limit."
        ),
    ] = Seconds(0)
    method: Annotated[str | None, Meta(description="`api: grpc`: the method to call, `package.Service/Method`.")] = None
    proto: Annotated[
        str | None,
        Meta(description="`api: grpc`: a `.proto` file or a descriptor set. Default: the server's reflection."),
    ] = None
    tls: Annotated[TLS, Meta(description="For https and grpcs URLs.")] = field(default_factory=TLS)
    timeouts: Annotated[
        Timeouts, Meta(description="A request that exceeds one of these fails, each with its own code.")
    ] = field(default_factory=Timeouts)

    @property
    def urls(self) -> list[str]:
        return [self.url] if isinstance(self.url, str) else self.url


# --- the rest --------------------------------------------------------------------------------------------------------


class Client(Section):
    processes: Annotated[
        Annotated[int, Meta(ge=0)] | Literal["auto"],
        Meta(
            description="Number of client processes. `auto`: as many as keep each below 40 % of a core, by the rate and the CPU time of a request in the probe, at most one less than there are cores. 0: in this process."
        ),
    ] = "auto"
    connections: Annotated[
        Annotated[int, Meta(ge=0)] | Literal["auto"],
        Meta(
            description="Connections to open before t=0. `auto`: the concurrency of a closed loop; in open loop, the number of requests in flight to expect by Little's law (the rate times the duration of a request in the probe) plus three times its square root, at least 4 and at most 1,024. More are opened during the run when they are needed."
        ),
    ] = "auto"
    reuse: Annotated[
        int,
        Meta(
            description="Close a connection after this many requests; a new one is opened when it is needed, after looking up the server's name again. 1: no keep-alive. 0: connections stay open, which pins them to the replicas that they were opened to.",
            ge=0,
        ),
    ] = 0
    retries: Annotated[
        int,
        Meta(
            description="How often a request is repeated if the connection is refused or fails, or the server closes or resets it before the response begins. Timeouts and TLS errors are final, and so are error responses unless `retry_statuses` has their status. The repetitions are part of the request's latency; `attempts` and `wasted` in requests.parquet say how many there were and how long they took. 0: such requests fail. (A request that meets an idle connection that the server has just closed is always sent again.)",
            ge=0,
            le=100,
        ),
    ] = 0
    retry_statuses: Annotated[
        list[Annotated[int, Meta(ge=400, le=599)]],
        Meta(
            description="HTTP statuses of responses after which `retries` repeat the request as well, such as `[429, 503]`: after the seconds that the response's `Retry-After` gives, else after `retry_backoff`."
        ),
    ] = field(default_factory=list)
    retry_backoff: Annotated[
        Seconds,
        Meta(
            description="Time to wait before the first of `retries`; it doubles each time, up to a minute. A request is not repeated any more when `server.timeouts.total` has passed since its first attempt."
        ),
    ] = Seconds(0.5)
    probe: Annotated[
        bool,
        Meta(
            description="Send up to 3 requests one after the other before the run, for at most 2 s, to find out how many connections and processes the load needs. They are not part of the results."
        ),
    ] = True
    warm: Annotated[
        bool,
        Meta(
            description="Use each connection once before t=0, for a cheap request (`GET /v1/models`, `GET /v2/health/live`; gRPC exchanges settings anyway)."
        ),
    ] = False
    grace: Annotated[
        Seconds,
        Meta(
            description="How long to wait for requests in flight after Ctrl-C. After a load with a `duration`, they fail as `unfinished` once none has made progress for this long, or for as long as the load took if that is longer: no response has ended, and no token has arrived that was requested."
        ),
    ] = Seconds(5)
    stamps: Annotated[
        Literal["kernel", "user"],
        Meta(description="Timestamps of arrivals: by the kernel, if it supports them, or when the data is read."),
    ] = "kernel"
    awake: Annotated[
        Literal["auto", "spin", "latency", "off"],
        Meta(
            description="How to keep the processor from sleeping when a send is near: `latency` opens `/dev/cpu_dma_latency`, which holds for all processors and usually needs root; `spin` polls instead of sleeping, as long as no process waits for a processor. `auto`: `latency` if permitted, else `spin`; short responses of a closed loop are always awaited by `spin`. It does not spin on a machine, or in a container, with less than two processors."
        ),
    ] = "auto"


class Measure(Section):
    warmup: Annotated[
        Window,
        Meta(
            description="What to leave out at the start of each stage: a number of requests, a duration, or `auto`. Closed loops also leave out the ramp-up and each user's first response, if they have at least 5 requests per user and 50 in total."
        ),
    ] = Window("0")
    cooldown: Annotated[Window, Meta(description="What to leave out at the end of each stage, likewise.")] = Window("0")
    failures_as_inf: Annotated[
        bool,
        Meta(
            description="Count failed requests as infinitely slow in the percentiles of `ttft` and `e2e` (cancelled and lost requests never do). If it is off, refusing the slowest requests improves the percentiles."
        ),
    ] = True


class Limits(Section):
    """Limits on the client, the server and the data. `effect_fail`, `failures`, `rate`, `concurrency`, `overload` and `clock_offset` make a run INVALID; the others warn."""

    effect_pass: Annotated[
        float,
        Meta(
            description="Share of a printed percentile that the client may have changed (by lag, stalls, late reads, clock steps) without a warning.",
            ge=0,
        ),
    ] = 0.01
    effect_fail: Annotated[
        float,
        Meta(
            description="Share of a printed percentile that the client may have changed; more makes the run INVALID.",
            ge=0,
        ),
    ] = 0.05
    effect_least: Annotated[
        Seconds, Meta(description="Changes of at most this much do not count, whatever their share.")
    ] = Seconds(0.0001)
    failures: Annotated[
        float, Meta(description="Maximum share of requests that fail, in each stage; more is INVALID.", ge=0, le=1)
    ] = 0.01
    lag: Annotated[
        Seconds,
        Meta(
            description="Open loop: warn if the p99 of the client's delay in sending exceeds this (and 0.5 % of the median time to first token)."
        ),
    ] = Seconds(0.00025)
    cpu: Annotated[
        float, Meta(description="Warn if a client process uses more than this share of a core.", gt=0, le=1)
    ] = 0.9
    stalls: Annotated[
        float,
        Meta(
            description="Warn if the client's event loop was blocked (for 10 ms or more at a time) for more than this share of the run.",
            ge=0,
            le=1,
        ),
    ] = 0.01
    rate: Annotated[
        float, Meta(description="Open loop: minimum share of the planned rate at which requests are sent.", ge=0, le=1)
    ] = 0.95
    concurrency: Annotated[
        float,
        Meta(
            description="Closed loop: minimum share of the planned concurrency that is in flight on average. Below 95 % there is a warning.",
            ge=0,
            le=1,
        ),
    ] = 0.8
    overload: Annotated[
        float,
        Meta(
            description="Open loop: a stage is overloaded if the number of requests in flight grows throughout, and by more than this share of the arrivals.",
            ge=0,
        ),
    ] = 0.02
    memory: Annotated[
        float, Meta(description="Warn if more than this share of the machine's memory is in use.", gt=0, le=1)
    ] = 0.95
    clock_step: Annotated[Seconds, Meta(description="Warn if the wall clock is stepped by more than this.")] = Seconds(
        0.001
    )
    clock_offset: Annotated[
        Seconds,
        Meta(
            description="Open loop on several machines: INVALID if their clocks may be apart by more than this and by more than the mean time between two requests."
        ),
    ] = Seconds(0.005)
    cached: Annotated[
        float,
        Meta(
            description="Warn if the server had cached more than this share of the prompt tokens, although prompts are fresh.",
            ge=0,
            le=1,
        ),
    ] = 0.1
    merged: Annotated[
        float,
        Meta(
            description="Warn if more than this share of the chunks arrived together with the chunk before.", ge=0, le=1
        ),
    ] = 0.05
    retries: Annotated[
        float, Meta(description="Warn if more than this share of the requests had to be sent twice.", ge=0, le=1)
    ] = 0.01


class Config(Section):
    server: Annotated[Server, Meta(description="The server to measure.")]
    data: Annotated[Data, Meta(description="What the requests contain.")] = field(default_factory=Synthetic)
    load: Annotated[Load, Meta(description="When requests are sent.")] = field(
        default_factory=lambda: Closed(duration=Seconds(30))
    )
    sessions: Annotated[Sessions, Meta(description="Sessions: conversations of several turns.")] = field(
        default_factory=Sessions
    )
    client: Annotated[Client, Meta(description="The client that sends the requests.")] = field(default_factory=Client)
    fleet: Annotated[
        Fleet, Meta(description="Where the client's processes run: on this machine, or on a Ray cluster.")
    ] = field(default_factory=Fleet)
    measure: Annotated[Measure, Meta(description="Which requests count.")] = field(default_factory=Measure)
    limits: Annotated[Limits, Meta(description="Above which limits a run is INVALID or has warnings.")] = field(
        default_factory=Limits
    )
    observe: Annotated[
        Observe, Meta(description="What to record beside the requests: the server's metrics, and the use of resources.")
    ] = field(default_factory=Observe)
    export: Annotated[Export, Meta(description="Live figures for other tools.")] = field(default_factory=Export)
    report: Annotated[
        Report,
        Meta(
            description="Files to write after the run, and what the report shows. Options of the command line override it."
        ),
    ] = field(default_factory=Report)
    slo: Annotated[
        str | list[str],
        Meta(
            description="Service level objectives, such as `ttft.p99 < 500ms`, or a preset: `chat`, `code`, `summarize`, `interactive`, `inference`; docs/reference/slo.md has the grammar. One that is missed gives exit status 1; one that is undecided counts as its measured value says."
        ),
    ] = field(default_factory=list)
    cost: Annotated[Cost, Meta(description="What the measured servers cost, and how many GPUs they have.")] = field(
        default_factory=Cost
    )
    sweep: Annotated[
        dict[str, list[Any]],
        Meta(
            description="`inferometer run` measures a run for each combination of these values, by key: `{data.input: [1024, 8192]}`. The same list at the key itself, `data: {input: [1024, 8192]}`, does so too, unless the key takes a list anyway, as `server.url` does."
        ),
    ] = field(default_factory=dict)
    abort: Annotated[Abort, Meta(description="Limits that end the run early.")] = field(default_factory=Abort)
    seed: Annotated[int, Meta(description="Seed of everything random in the plan and the prompts.", ge=0)] = 0
    keep: Annotated[
        Literal["text"] | list[Literal["text"]],
        Meta(
            description="What to store beside the measurements. `text`: the bodies of requests as they are sent and the generated text, in `bodies.parquet` in the run's folder. Headers and secrets of this file are not stored, but prompts and responses are: mind what they contain."
        ),
    ] = field(default_factory=list)
    output: Annotated[
        str,
        Meta(
            description="Folder in which each run creates its own folder, or a bucket: `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX`. A run for a bucket is measured into `storage.local` and then uploaded."
        ),
    ] = "runs"
    storage: Annotated[
        Storage, Meta(description="How to reach the bucket of `output`. Credentials come from the environment.")
    ] = field(default_factory=Storage)

    @property
    def slos(self) -> list[str]:
        return [self.slo] if isinstance(self.slo, str) else self.slo

    @property
    def kept(self) -> list[Literal["text"]]:
        return [self.keep] if isinstance(self.keep, str) else self.keep
