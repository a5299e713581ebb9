"""The `load` section of the config: one class per kind of load."""

from typing import Annotated, Literal

from msgspec import Meta

from inferometer.config.fields import Count, Positive, RampUp, Seconds, Section


class _Stage(Section, tag_field="type", kw_only=True):
    name: Annotated[str, Meta(description="Name of the stage in reports. Default: its number, type and level.")] = ""
    unit: Annotated[
        Literal["sessions", "requests"],
        Meta(
            description="If the data has sessions (conversations of several turns): what rates, `requests` and the `concurrency` of a closed loop count. `sessions`: sessions started per second, sessions in total, sessions at a time. `requests`: open loop, sessions start so often that requests arrive at the rate on average; closed loop, this many requests are in flight, and while a user thinks, another session's turn is sent."
        ),
    ] = "sessions"
    stable: Annotated[
        float,
        Meta(
            description="End as soon as three consecutive windows agree, and count only those: the highest throughput and the highest mean latency are at most this share "
            "above the lowest (perf_analyzer's rule, with 0.1). `duration` is then the maximum (default: 10 windows), and a stage that does not become "
            "stable makes the run INVALID. 0: off.",
            ge=0,
        ),
    ] = 0.0
    window: Annotated[
        Seconds, Meta(description="Length of a window of `stable`. The first begins with the first response.")
    ] = Seconds(5)


class _Open(_Stage, tag_field="type"):
    duration: Annotated[Seconds, Meta(description="How long requests are sent.")] = Seconds(0)
    requests: Annotated[
        int, Meta(description="Number of requests to send (instead of `duration`, or to end earlier).", ge=0)
    ] = 0
    max_concurrency: Annotated[
        int, Meta(description="Maximum number of requests in flight; 0 means no limit.", ge=0)
    ] = 0
    when_full: Annotated[
        Literal["queue", "drop"],
        Meta(
            description="What happens at `max_concurrency`: the request waits, and the wait counts as its latency; or it is dropped, which makes the run INVALID."
        ),
    ] = "queue"


class _Rated(_Open, tag_field="type"):
    count: Annotated[
        Literal["expected", "random"],
        Meta(
            description="Number of requests when arrivals are random: `expected` sends exactly rate times duration, rounded; `random` lets the number vary from seed to seed."
        ),
    ] = "expected"
    users: Annotated[
        int,
        Meta(
            description="If the data has sessions: this many sessions take turns, so that request i of the stage is the next turn of session i modulo `users`, at the instant of the schedule, or when the response to the turn before is complete if that is later. The rate then counts requests, and the sessions end with the stage. 0: a session sends its next turn when its user has thought.",
            ge=0,
        ),
    ] = 0


Rate = Positive | str
_RATE = (
    '`[5, 10, 20]`, `"100:500:100"` (start:end[:step]) and `"1:64:x2"` (start:end:xFACTOR) are one stage per level; `"1:64:adaptive"` is one run per level, chosen around the knee. `"10 + 5*sin(2*pi*t/60)"` is a rate that changes over `duration`: a '
    "formula of `t` in seconds, with + - * / ** %, comparisons, `a if b else c`, sin, cos, exp, log, sqrt, abs, floor, min, max, pi and e."
)


class Constant(_Rated, kw_only=True, tag="constant"):
    """Requests at equal intervals."""

    rate: Annotated[Rate, Meta(description=f"Requests per second. {_RATE}")]


class Poisson(_Rated, kw_only=True, tag="poisson"):
    """Independent arrivals: exponentially distributed gaps."""

    rate: Annotated[Rate, Meta(description=f"Requests per second, on average. {_RATE}")]


class Gamma(_Rated, kw_only=True, tag="gamma"):
    """Gamma-distributed gaps: burstier than Poisson if `burstiness` is below 1, smoother above."""

    rate: Annotated[Rate, Meta(description=f"Requests per second, on average. {_RATE}")]
    burstiness: Annotated[Positive, Meta(description="Shape parameter of the gamma distribution; 1 is Poisson.")] = 1.0


Arrivals = Literal["constant", "poisson"]
_ARRIVALS = Meta(description="How requests are distributed: evenly, or as a Poisson process.")


class Ramp(_Rated, kw_only=True, tag="ramp"):
    """A rate that changes linearly from `start` to `end` over `duration`."""

    start: Annotated[float, Meta(description="Requests per second at the start.", ge=0)] = 0.0
    end: Annotated[Positive, Meta(description="Requests per second at the end.")]
    arrivals: Annotated[Arrivals, _ARRIVALS] = "poisson"


class Steps(_Rated, kw_only=True, tag="steps"):
    """A series of rates, each for an equal part of `duration`."""

    rates: Annotated[list[Positive], Meta(description="Requests per second of each step.", min_length=1)]
    arrivals: Annotated[Arrivals, _ARRIVALS] = "poisson"


class Bursts(_Rated, kw_only=True, tag="bursts"):
    """Alternating on and off periods, starting with on."""

    rate: Annotated[Positive, Meta(description="Requests per second while on.")]
    idle_rate: Annotated[float, Meta(description="Requests per second while off.", ge=0)] = 0.0
    on: Annotated[Seconds, Meta(description="Length of an on period.")]
    off: Annotated[Seconds, Meta(description="Length of an off period.")]
    arrivals: Annotated[Arrivals, _ARRIVALS] = "poisson"


class Replay(_Open, kw_only=True, tag="trace"):
    """The arrivals of a trace (`data: {type: trace}`): each request is sent at its recorded time, divided by `data.speed`. The stage ends with the trace, or earlier after `duration` or `requests`."""


class Closed(_Stage, tag_field="type", tag="closed"):
    """A fixed number of users, each of which sends its next request when the previous response is complete."""

    concurrency: Annotated[
        Count,
        Meta(
            description='Requests in flight. `[1, 8, 64]`, `"1:8:2"` (start:end[:step], end included) and `"1:64:x2"` (start:end:xFACTOR) are one stage per level; `"1:64:adaptive"` is one run per level, chosen around the knee.'
        ),
    ] = 16
    requests: Annotated[
        int,
        Meta(
            description="Number of requests to send. With several client processes, a faster one sends more of them, so that all finish together (sequences are divided equally). Without a duration, the stage also ends if the server cannot be reached for 30 s.",
            ge=0,
        ),
    ] = 0
    duration: Annotated[Seconds, Meta(description="How long requests are sent (those in flight are completed).")] = (
        Seconds(0)
    )
    ramp_up: Annotated[
        RampUp,
        Meta(
            description="Time over which the users start, evenly spread. `auto`: about the duration of one request, as the probe before the run measured it, at most a quarter of `duration`; "
            "without a probe, up to 1 s, or until shortly after the first response. `0`: all users start at once."
        ),
    ] = RampUp("auto")
    think: Annotated[Seconds, Meta(description="Pause of a user between a response and its next request.")] = Seconds(0)


StageSpec = Constant | Poisson | Gamma | Ramp | Steps | Bursts | Replay | Closed


class Stages(Section, tag_field="type", tag="stages"):
    """Several loads, one after the other."""

    stages: Annotated[list[StageSpec], Meta(description="The loads, each written as if it were alone.", min_length=1)]
    drain: Annotated[
        bool,
        Meta(
            description="Start a stage only when every request of the stages before has ended, in all processes. `server.timeouts.total` and `client.grace` limit how long that takes. The default is true if the stages come from a "
            'range such as `rate: "10:50:10"`, beside which it can be set, too.'
        ),
    ] = False
    pause: Annotated[
        Seconds,
        Meta(
            description="Time between a stage and the next one, in which no new requests are sent. It counts from the end of the stage or, with `drain`, from the end of its last request. It can be set beside a range, too."
        ),
    ] = Seconds(0)
    cut_short: Annotated[
        bool,
        Meta(
            description="End a stage of constant rate early when the server clearly does not keep up: the number of requests in flight grows throughout. "
            "The responses in flight are awaited for at most the planned length of the stage, then the next stage starts. It needs `drain`. The default is true if the stages come from a range "
            "and `drain` is true; it can be set beside the range, too."
        ),
    ] = False


Load = StageSpec | Stages


def has_changing_rate(stage: StageSpec) -> bool:
    """Whether the rate of an open loop changes over its duration, which it then needs."""
    return isinstance(stage, Ramp | Steps | Bursts) or isinstance(getattr(stage, "rate", None), str)


def stages_of(load: Load) -> list[StageSpec]:
    """The stages of a load: its own, or the load itself."""
    return load.stages if isinstance(load, Stages) else [load]
