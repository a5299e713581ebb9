"""`inferometer serve`: turns command-line options into settings, then starts the server in serve/."""

import ipaddress
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from inferometer.errors import UserError
from inferometer.serve.settings import Limits, Settings, Tls, check
from inferometer.serve.sim.faults import KINDS, WHENS
from inferometer.serve.sim.settings import Batch, Fixed, Sim
from inferometer.units import format_seconds, parse_bytes, parse_seconds

if TYPE_CHECKING:
    from inferometer.serve.app import Listening

_ONLY_FIXED = ("ttft", "itl", "service")
_ONLY_BATCH = (
    "prefill_rate", "prefill_overhead", "decode_step", "decode_per_seq", "kv_tokens", "chunked_prefill", "token_budget",
    "prefix_cache", "block_size",
)  # fmt: skip
_ONLY_SIMULATOR = ("lora", "seed", "tokens_per_chunk", "max_queue", "max_len", "truth", "faults", "allow_fault_header")
_SIM = "sim"
_OPEN = (
    "inferometer: warning: everyone who can reach %s can use this server\n  next: require a token with --token-env NAME"
)


def _parsed(parse: Callable[[str], Any]) -> Callable[[click.Context, click.Parameter, str | None], Any]:
    """Return a click callback that parses a value; `parse` raises ValueError with what is accepted."""

    def read(_: click.Context, option: click.Parameter, text: str | None) -> Any:
        try:
            return None if text is None else parse(text)
        except ValueError as error:
            raise UserError(f"{option.opts[0]}: {error}", "run `inferometer serve --help`") from None

    return read


def _parse_latency(text: str) -> float:
    """Parse a simulated time. It needs a unit: a bare number could be seconds or milliseconds."""
    if text.strip().replace(".", "", 1).isdecimal() and float(text):
        raise ValueError(f"{text} has no unit: write {text}ms or {text}s")
    return parse_seconds(text)


def _parse_share(text: str) -> float:
    try:
        return float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        raise ValueError(f"expected a share such as 5% or 0.05 (got {text!r})") from None


_TIME: dict[str, Any] = {"metavar": "TIME", "callback": _parsed(parse_seconds)}
_LATENCY: dict[str, Any] = {"metavar": "TIME", "callback": _parsed(_parse_latency)}
_SHARE: dict[str, Any] = {"metavar": "SHARE", "callback": _parsed(_parse_share)}
_SIZE: dict[str, Any] = {"metavar": "SIZE", "callback": _parsed(parse_bytes)}
_FILE: dict[str, Any] = {"type": click.Path(dir_okay=False), "metavar": "FILE"}


def _table(rows: list[tuple[str, str]]) -> str:
    width = max(len(left) for left, _ in rows)
    return "\b\n" + "\n".join(f"  {left:<{width}}  {right}" for left, right in rows)


_EPILOG = f"""
Models: any number of built-in names, model files, model folders, and model repositories in Triton's layout
(REPOSITORY/MODEL/config.pbtxt and REPOSITORY/MODEL/1/...). `inferometer docs server` describes the server, `inferometer docs serve-your-model` the
models that it can load.

\b
  inferometer serve                the simulator, with OpenAI endpoints
  inferometer serve classifier     an image classifier (inferometer[torch])
  inferometer serve identity sim   two models: identity and the simulator
  inferometer serve models/ --config instance_group.count=2
  inferometer serve resnet.onnx --config max_batch_size=8

Simulator with fixed timing (the default): every response has its first token after --ttft and one more every --itl.

\b
  inferometer serve --ttft 50ms --itl 10ms --max-batch 64

Simulator with a batch engine, as in LLM servers (used when any option marked "Batch" is given): all sequences advance
together, and a step lasts (prefill overhead + prefill tokens / prefill rate) + (decode step + sequences x cost per
sequence).

\b
  inferometer serve --prefill-rate 20000 --decode-step 8ms --prefix-cache

Faults: --fault KIND[=ARG][@WHEN] may be repeated; the first one that matches a request applies to it. KIND:

{_table([(kind + arg, text) for kind, (arg, text) in KINDS.items()])}

WHEN:

{_table(list(WHENS.items()))}

\b
  inferometer serve --fault reject=503@5% --fault stall=2s@#7
"""


@click.command(epilog=_EPILOG, short_help="Start the reference server.")
@click.argument("models", nargs=-1, metavar="[identity|classifier|sim|FILE|FOLDER]...")
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0 for all interfaces."
)
@click.option(
    "--http", "--port", "http", type=int, default=8000, show_default=True, help="HTTP port; 0: any free port."
)
@click.option("--grpc", type=int, help="gRPC port; 0: any free port, -1: no gRPC.  [default: --http + 1]")
@click.option(
    "--metrics",
    type=int,
    help="Additional port for /metrics, which --http serves too; 0: any free port, -1: none.  [default: --http + 2]",
)
@click.option(
    "--processes", type=int, default=1, show_default=True,
    help="Front-end processes that share the ports; torch, ONNX and transformers models get their own.",
)  # fmt: skip
@click.option(
    "--config",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a field of the models' configurations. May be repeated.",
)
@click.option(
    "--shape",
    multiple=True,
    metavar="[NAME=]-1,3,224,224",
    help="TorchScript: full shape of an input, which the file does not say; -1: any size. May be repeated.",
)
@click.option("--device", default="auto", show_default=True, help="cpu, cuda, cuda:1, ...; auto: CUDA if available.")
@click.option("--tls-cert", **_FILE, help="Certificate chain (PEM): serve HTTPS and gRPC over TLS.")
@click.option("--tls-key", **_FILE, help="Private key of --tls-cert (PEM).")
@click.option("--tls-client-ca", **_FILE, help="Mutual TLS: require client certificates signed by this CA (PEM).")
@click.option(
    "--token-env", "--api-key-env", "token_env", metavar="NAME",
    help="Require the bearer token that this environment variable holds.",
)  # fmt: skip
@click.option("--allow-control", is_flag=True, help="Allow clients to load and unload models.")
@click.option("--max-message", **_SIZE, help="Maximum size of a request body or message.  [default: 1GiB + 64KiB]")
@click.option(
    "--max-header", **_SIZE, default="64KiB", show_default=True, help="Maximum size of request headers or metadata."
)
@click.option(
    "--max-streams", type=int, default=10_000, show_default=True, help="Maximum concurrent gRPC calls per connection."
)
@click.option(
    "--max-requests",
    type=int,
    default=100_000,
    show_default=True,
    help="Maximum inferences in progress; further ones are refused.",
)
@click.option(
    "--idle",
    **_TIME,
    default="2m",
    show_default=True,
    help="Close HTTP connections that have been idle for this long; 0: never.",
)
@click.option(
    "--stalled", **_TIME, default="1m", show_default=True,
    help="Give up on HTTP requests and responses that make no progress for this long; 0: never.",
)  # fmt: skip
@click.option("--access-log", is_flag=True, help="Log one line per request to standard error.")
@click.option(
    "--drain", **_TIME, default="30s", show_default=True,
    help="After SIGTERM, wait this long for requests in progress; a second signal stops at once.",
)  # fmt: skip
@click.option("--model", default=_SIM, show_default=True, help="Simulator: name of the model.")
@click.option(
    "--lora",
    multiple=True,
    metavar="NAME",
    help="Simulator: name of a LoRA adapter, which is served like the model. May be repeated.",
)
@click.option("--ttft", **_LATENCY, help="Fixed: time to the first token.  [default: 50ms]")
@click.option("--itl", **_LATENCY, help="Fixed: time between tokens.  [default: 10ms]")
@click.option(
    "--max-batch", type=int,
    help="Simulator: maximum requests served at a time; others queue.  [default: no limit, Batch: 64]",
)  # fmt: skip
@click.option("--max-queue", type=int, help="Simulator: maximum queued requests; further ones get a 503.")
@click.option("--prefill-rate", type=float, help="Batch: prompt tokens per second.  [default: 20000]")
@click.option("--prefill-overhead", **_LATENCY, help="Batch: additional time of a step that prefills.  [default: 0]")
@click.option("--decode-step", **_LATENCY, help="Batch: time of a step that decodes.  [default: 10ms]")
@click.option("--decode-per-seq", **_LATENCY, help="Batch: additional time per decoding sequence.  [default: 0]")
@click.option(
    "--kv-tokens",
    type=int,
    help="Batch: KV cache size in tokens; when full, the latest sequence is preempted.  [default: 524288]",
)
@click.option(
    "--chunked-prefill/--no-chunked-prefill", default=None,
    help="Batch: prefill in chunks within the token budget, or whole prompts, which stall decoding.  [default: chunked]",
)  # fmt: skip
@click.option("--token-budget", type=int, help="Batch: tokens per step with chunked prefill.  [default: 2048]")
@click.option(
    "--prefix-cache/--no-prefix-cache",
    default=None,
    help="Batch: share KV blocks of common prompt prefixes.  [default: no]",
)
@click.option("--block-size", type=int, help="Batch: tokens per KV block.  [default: 16]")
@click.option("--jitter", **_SHARE, help="Simulator: vary times by up to ± this share.  [default: 0%]")
@click.option(
    "--service", type=click.Choice(("constant", "exponential", "lognormal")),
    help="Fixed: how the times of requests vary around the given ones, which stay the mean.  [default: constant]",
)  # fmt: skip
@click.option("--seed", type=int, help="Simulator: seed of random times and faults.  [default: 0]")
@click.option(
    "--tokens-per-chunk", type=int,
    help="Simulator: tokens per streamed chunk (Fixed: sent with the first token; Batch: generated in one step).  [default: 1]",
)  # fmt: skip
@click.option(
    "--max-len", type=int, help="Simulator: maximum tokens of prompt and response together.  [default: 131072]"
)
@click.option("--truth", **_FILE, help="Simulator: log its own timestamps, one JSON line per request.")
@click.option(
    "--fault", "faults", multiple=True, metavar="FAULT", help="Simulator: inject a fault (see below). May be repeated."
)
@click.option(
    "--allow-fault-header",
    is_flag=True,
    default=None,
    help="Simulator: let a request choose its fault with the header x-sim-fault: KIND[=ARG].",
)
def command(
    models: tuple[str, ...], host: str, http: int, grpc: int | None, metrics: int | None, **options: Any
) -> None:
    """Start the reference server: tensor models over KServe v2 (HTTP and gRPC), and a simulator with OpenAI endpoints."""
    settings = Settings(
        models=tuple(name for name in models if name != _SIM),
        sim=_simulator(options, not models or _SIM in models),
        config=(*options["config"], *([f"parameters.shape={';'.join(options['shape'])}"] if options["shape"] else ())),
        device=options["device"],
        processes=options["processes"],
        host=host,
        http=http,
        grpc=_port(grpc, http, 1),
        metrics=_port(metrics, http, 2),
        tls=_tls(options),
        token=_token(options["token_env"]),
        limits=Limits(
            message=Limits().message if options["max_message"] is None else options["max_message"],
            head=options["max_header"],
            streams=options["max_streams"],
            requests=options["max_requests"],
            idle=options["idle"],
            stalled=options["stalled"],
        ),
        control=options["allow_control"],
        access_log=options["access_log"],
        drain=options["drain"],
    )
    check(settings)
    if settings.token is None and not (settings.tls and settings.tls.client_ca) and not _is_loopback(host):
        click.echo(_OPEN % host, err=True)
    from inferometer.serve.app import serve  # noqa: PLC0415  (heavy: not for --help)
    from inferometer.serve.background import run_process  # noqa: PLC0415

    run_process(serve(settings, lambda listening: click.echo(_banner(settings, listening))))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _port(given: int | None, http: int, further: int) -> int | None:
    """Return the port to listen on, or None for -1. If not given, it follows the HTTP port (any free port if --http is
    0)."""
    if given is None:
        return http + further if http else 0
    return None if given == -1 else given


def _simulator(options: dict[str, Any], served: bool) -> Sim | None:
    given = [name for name in ("jitter", "max_batch", *_ONLY_FIXED, *_ONLY_BATCH, *_ONLY_SIMULATOR) if options[name]]
    if not served:
        if options["model"] != _SIM:
            given.append("model")
        if given:
            option = "--fault" if given[0] == "faults" else "--" + given[0].replace("_", "-")
            raise UserError(
                f"{option} applies to the simulator only, which is not served",
                f"add sim to the models, or remove {option}",
            )
        return None
    values = {name: options[name] for name in _ONLY_SIMULATOR if options[name] is not None}
    return Sim(timing=_timing(options), model=options["model"], **values)


def _timing(options: dict[str, Any]) -> Fixed | Batch:
    """Return fixed timing, unless an option of the batch engine was given."""
    fixed = [name for name in _ONLY_FIXED if options[name] is not None]
    batch = [name for name in _ONLY_BATCH if options[name] is not None]
    if fixed and batch:
        given = " and ".join("--" + names[0].replace("_", "-") for names in (fixed, batch))
        raise UserError(f"{given} cannot be combined", "the first selects fixed timing, the second the batch engine")
    values = {name: options[name] for name in (*fixed, *batch, "jitter", "max_batch") if options[name] is not None}
    if "block_size" in values:
        values["block"] = values.pop("block_size")
    return Batch(**values) if batch else Fixed(**values)


def _tls(options: dict[str, Any]) -> Tls | None:
    cert, key, client_ca = (options[f"tls_{name}"] for name in ("cert", "key", "client_ca"))
    if cert is None and key is None and client_ca is None:
        return None
    if cert is None or key is None:
        raise UserError("TLS needs a certificate and its private key", "set both --tls-cert and --tls-key")
    return Tls(cert, key, client_ca or "")


def _token(name: str | None) -> str | None:
    if name is None:
        return None
    token = os.environ.get(name)
    if not token:
        raise UserError(f"the environment variable {name} is not set", f"export {name}=TOKEN, or remove --token-env")
    return token


def _banner(settings: Settings, listening: "Listening") -> str:
    models = ", ".join(listening.models) or "none"
    shared = f"; {settings.processes} processes" if settings.processes > 1 else ""
    if shared and settings.sim:
        shared += ", each with a simulator of its own, like data-parallel replicas"
    lines = [f"Listening on {listening.http} (model{'s' if ', ' in models else ''} {models}{shared})"]
    if listening.grpc:
        lines.append(f"  gRPC    {listening.grpc}")
    if listening.metrics:
        lines.append(f"  metrics {listening.metrics}")
    if settings.sim:
        lines.append(_described(settings.sim.timing))
    lines += [f"Failed to load {name}: {reason}" for name, reason in listening.failed]
    return "\n".join(lines)


def _described(timing: Fixed | Batch) -> str:
    if isinstance(timing, Fixed):
        return f"fixed: TTFT {format_seconds(timing.ttft)}, ITL {format_seconds(timing.itl)}"
    step = format_seconds(timing.decode_step)
    return f"batch engine: prefill {timing.prefill_rate:g} tokens/s, decode step {step}"
