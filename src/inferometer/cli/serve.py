"""`inferometer serve`: options into settings; serve/ does the rest."""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from inferometer.errors import UserError
from inferometer.serve import threads
from inferometer.serve.settings import GRPC_MOST, LAST_PORT, Limits, Settings, Tls, check
from inferometer.serve.sim.faults import KINDS, WHENS
from inferometer.serve.sim.settings import Batch, Fixed, Sim, describe
from inferometer.units import parse_bytes, parse_seconds

if TYPE_CHECKING:
    from inferometer.serve.app import Listening

_ONLY_FIXED = ("ttft", "itl")
_ONLY_BATCH = (
    "prefill_rate", "prefill_overhead", "decode_step", "decode_per_seq", "kv_tokens", "chunked_prefill", "token_budget",
    "prefix_cache", "block_size",
)  # fmt: skip
_OF_THE_SIMULATOR = ("seed", "tokens_per_chunk", "max_queue", "max_len", "truth", "faults", "allow_fault_header")
_SIM = "sim"
_MESSAGES_IN_PIECES = 4
"""What a request that comes in pieces may have, by what one in a message may."""
_CUT = " (messages below 2 GiB, which is gRPC's own limit; InferChunked takes more)"


def _parsed(parse: Callable[[str], Any]) -> Callable[[click.Context, click.Parameter, str | None], Any]:
    """A click callback that reads a value; `parse`'s ValueError says what is accepted."""

    def read(_: click.Context, option: click.Parameter, text: str | None) -> Any:
        try:
            return None if text is None else parse(text)
        except ValueError as error:
            raise UserError(f"{option.opts[0]}: {error}", "see `inferometer serve --help`") from None

    return read


def _parse_share(text: str) -> float:
    try:
        return float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        raise ValueError(f"expected a share such as 5% or 0.05, got {text!r}") from None


_TIME: dict[str, Any] = {"metavar": "TIME", "callback": _parsed(parse_seconds)}
_SHARE: dict[str, Any] = {"metavar": "SHARE", "callback": _parsed(_parse_share)}
_SIZE: dict[str, Any] = {"metavar": "SIZE", "callback": _parsed(parse_bytes)}
_FILE: dict[str, Any] = {"type": click.Path(dir_okay=False), "metavar": "FILE"}


def _table(rows: list[tuple[str, str]]) -> str:
    width = max(len(left) for left, _ in rows)
    return "\b\n" + "\n".join(f"  {left:<{width}}  {right}" for left, right in rows)


_EPILOG = f"""
Models: a built-in name, a model file, a model's folder, or a repository of models (REPOSITORY/MODEL/config.pbtxt and
REPOSITORY/MODEL/1/..., as Triton has it). docs/reference/server.md says what it does, docs/how-to/serve-your-model.md which models it takes.

\b
  inferometer serve                the simulator, with OpenAI endpoints
  inferometer serve classifier     an image classifier (inferometer[torch])
  inferometer serve identity sim   both
  inferometer serve models/ --config instance_group.count=2
  inferometer serve resnet.onnx --config max_batch_size=8

The simulator, fixed timing (the default): every request gets its first token after --ttft, each further one --itl later.

\b
  inferometer serve --ttft 50ms --itl 10ms --max-batch 64

Batch engine, as LLM servers have, with any of --prefill-rate, --decode-step and their like: all sequences move together,
and a step lasts (prefill overhead + prefill tokens / prefill rate) + (decode step + sequences x cost a sequence).

\b
  inferometer serve --prefill-rate 20000 --decode-step 8ms --prefix-cache

Faults: --fault KIND[=ARG][@WHEN], any number of them; the first that fits a request strikes it. KIND:

{_table([(kind + arg, text) for kind, (arg, text) in KINDS.items()])}

WHEN:

{_table(list(WHENS.items()))}

\b
  inferometer serve --fault reject=503@5% --fault stall=2s@#7
"""


@click.command(epilog=_EPILOG, short_help="Start the reference server.")
@click.argument("models", nargs=-1, metavar="[identity|classifier|sim|FILE|FOLDER]...")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0 for all.")
@click.option("--http", "--port", "http", type=int, default=8000, show_default=True, help="HTTP port; 0: any free one.")
@click.option("--grpc", type=int, help="gRPC port; 0: any free one, -1: none.  [default: the next after --http]")
@click.option(
    "--metrics", type=int, help="Port of /metrics, which --http has too; -1: none.  [default: the next but one]"
)
@click.option("--config", multiple=True, metavar="KEY=VALUE", help="Put over the models' configurations; repeatable.")
@click.option("--device", default="auto", show_default=True, help="cpu, cuda, cuda:1, ...; auto: CUDA where there is.")
@click.option("--tls-cert", **_FILE, help="Certificate chain (PEM): serve HTTPS and gRPC over TLS.")
@click.option("--tls-key", **_FILE, help="Its key (PEM).")
@click.option("--tls-client-ca", **_FILE, help="Mutual TLS: clients show a certificate of this authority.")
@click.option(
    "--token-env", "--api-key-env", "token_env", metavar="NAME",
    help="Ask clients for the bearer token in this environment variable.",
)  # fmt: skip
@click.option("--allow-control", is_flag=True, help="Let clients load and unload models.")
@click.option(
    "--max-message", **_SIZE, help="Of a request's body or message.  [default: a tensor of 1GiB and 64KiB around it]"
)
@click.option("--max-header", **_SIZE, default="64KiB", show_default=True, help="Of a request's head or metadata.")
@click.option(
    "--max-streams", type=int, default=10_000, show_default=True, help="gRPC calls at a time on a connection."
)
@click.option("--max-requests", type=int, default=100_000, show_default=True, help="Inferences under way in all.")
@click.option(
    "--idle",
    **_TIME,
    default="2m",
    show_default=True,
    help="Close HTTP connections without a request for so long; 0: never.",
)
@click.option(
    "--stalled", **_TIME, default="1m", show_default=True,
    help="Give up HTTP requests that are not complete, and answers that are not read, without progress for so long; 0: never.",
)  # fmt: skip
@click.option("--access-log", is_flag=True, help="A line for each request on standard error.")
@click.option(
    "--drain", **_TIME, default="30s", show_default=True,
    help="What requests under way are given at SIGTERM; a second signal ends at once.",
)  # fmt: skip
@click.option("--model", default=_SIM, show_default=True, help="Simulator: its name.")
@click.option("--ttft", **_TIME, help="Fixed: time to the first token.  [default: 50ms]")
@click.option("--itl", **_TIME, help="Fixed: time between tokens.  [default: 10ms]")
@click.option(
    "--max-batch", type=int,
    help="Simulator: requests served at a time; the others queue.  [default: fixed no limit, batch 64]",
)  # fmt: skip
@click.option("--max-queue", type=int, help="Simulator: requests in the queue beyond which new ones get 503.")
@click.option("--prefill-rate", type=float, help="Batch: prompt tokens a second.  [default: 20000]")
@click.option("--prefill-overhead", **_TIME, help="Batch: what a step that prefills takes besides.  [default: 0]")
@click.option("--decode-step", **_TIME, help="Batch: what a step that decodes takes.  [default: 10ms]")
@click.option("--decode-per-seq", **_TIME, help="Batch: and this for each sequence in it.  [default: 0]")
@click.option(
    "--kv-tokens", type=int, help="Batch: tokens of KV room; then the latest is preempted.  [default: 524288]"
)
@click.option(
    "--chunked-prefill/--no-chunked-prefill", default=None,
    help="Batch: prefill in pieces of the token budget, or whole prompts that stall those that decode.  [default: chunked]",
)  # fmt: skip
@click.option("--token-budget", type=int, help="Batch: tokens a step, with chunked prefill.  [default: 2048]")
@click.option(
    "--prefix-cache/--no-prefix-cache", default=None, help="Batch: share KV of equal prompt starts.  [default: no]"
)
@click.option("--block-size", type=int, help="Batch: tokens a KV block.  [default: 16]")
@click.option("--jitter", **_SHARE, help="Simulator: how far times vary to both sides, from --seed.  [default: 0%]")
@click.option("--seed", type=int, help="Simulator: of the jitter and of random faults.  [default: 0]")
@click.option(
    "--tokens-per-chunk", type=int,
    help="Simulator: tokens in each streamed chunk; fixed: due with its first; batch: made in one step.  [default: 1]",
)  # fmt: skip
@click.option("--max-len", type=int, help="Simulator: tokens of prompt and answer together.  [default: 131072]")
@click.option("--truth", **_FILE, help="Simulator: log its own stamps, a JSON line a request.")
@click.option("--fault", "faults", multiple=True, metavar="FAULT", help="Inject a fault: see below. May be repeated.")
@click.option(
    "--allow-fault-header", is_flag=True, default=None, help="Let a request ask for its fault: x-sim-fault: KIND[=ARG]."
)
def command(models: tuple[str, ...], host: str, http: int, grpc: int | None, metrics: int | None, **told: Any) -> None:
    """Start the reference server: tensor models over KServe v2 (HTTP and gRPC), and OpenAI endpoints on a simulator."""
    settings = Settings(
        models=tuple(name for name in models if name != _SIM),
        sim=_simulator(told, not models or _SIM in models),
        config=told["config"],
        device=told["device"],
        host=host,
        http=http,
        grpc=_port(grpc, http, 1),
        metrics=_port(metrics, http, 2),
        tls=_tls(told),
        token=_token(told["token_env"]),
        limits=Limits(
            message=(message := Limits().message if told["max_message"] is None else told["max_message"]),
            chunked=_MESSAGES_IN_PIECES * message,
            head=told["max_header"],
            streams=told["max_streams"],
            requests=told["max_requests"],
            idle=told["idle"],
            stalled=told["stalled"],
        ),
        control=told["allow_control"],
        access_log=told["access_log"],
        drain=told["drain"],
    )
    check(settings)
    from inferometer.serve.app import serve  # noqa: PLC0415  (heavy: not for --help)
    from inferometer.timing.loop import run  # noqa: PLC0415

    run(serve(settings, lambda listening: click.echo(_announced(settings, listening))))
    threads.leave()


def _port(given: int | None, http: int, further: int) -> int | None:
    """-1 is none; not given, it stands beside the HTTP port, or is any free one like that."""
    if given is None:
        if http <= LAST_PORT < http + further:
            raise UserError(
                f"--http is {http}, and gRPC and the metrics are on the two ports after it unless told",
                "give a lower --http, or --grpc and --metrics (0: any free one, -1: none)",
            )
        return http + further if http else 0
    return None if given == -1 else given


def _simulator(told: dict[str, Any], served: bool) -> Sim | None:
    given = [name for name in ("jitter", "max_batch", *_ONLY_FIXED, *_ONLY_BATCH, *_OF_THE_SIMULATOR) if told[name]]
    if not served:
        if told["model"] != _SIM:
            given.append("model")
        if given:
            option = "--fault" if given[0] == "faults" else "--" + given[0].replace("_", "-")
            raise UserError(
                f"{option} is the simulator's, which is not served", "name sim among the models, or leave it out"
            )
        return None
    values = {name: told[name] for name in _OF_THE_SIMULATOR if told[name] is not None}
    return Sim(timing=_timing(told), model=told["model"], **values)


def _timing(told: dict[str, Any]) -> Fixed | Batch:
    """Fixed, unless an option of the batch engine was given."""
    fixed = [name for name in _ONLY_FIXED if told[name] is not None]
    batch = [name for name in _ONLY_BATCH if told[name] is not None]
    if fixed and batch:
        given = " and ".join("--" + names[0].replace("_", "-") for names in (fixed, batch))
        raise UserError(f"{given} do not go together", "the first is of fixed timing, the second of the batch engine")
    values = {name: told[name] for name in (*fixed, *batch, "jitter", "max_batch") if told[name] is not None}
    if "block_size" in values:
        values["block"] = values.pop("block_size")
    return Batch(**values) if batch else Fixed(**values)


def _tls(told: dict[str, Any]) -> Tls | None:
    cert, key, client_ca = (told[f"tls_{name}"] for name in ("cert", "key", "client_ca"))
    if cert is None and key is None and client_ca is None:
        return None
    if cert is None or key is None:
        raise UserError("TLS needs a certificate and its key", "give both --tls-cert and --tls-key")
    return Tls(cert, key, client_ca or "")


def _token(name: str | None) -> str | None:
    if name is None:
        return None
    token = os.environ.get(name)
    if not token:
        raise UserError(f"the environment variable {name} is not set", f"export {name}=TOKEN, or leave out --token-env")
    return token


def _announced(settings: Settings, listening: "Listening") -> str:
    models = ", ".join(listening.models) or "none"
    lines = [f"Listening on {listening.http} (model{'s' if ', ' in models else ''} {models})"]
    if listening.grpc:
        lines.append(f"  gRPC    {listening.grpc}{_CUT if settings.limits.message > GRPC_MOST else ''}")
    if listening.metrics:
        lines.append(f"  metrics {listening.metrics}")
    if settings.sim:
        lines.append(describe(settings.sim))
    lines += [f"Not served: {name}: {reason}" for name, reason in listening.failed]
    return "\n".join(lines)
