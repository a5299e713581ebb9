"""`inferometer serve`: options into settings; serve/ does the rest."""

import os
from collections.abc import Callable
from typing import Any

import click

from inferometer.errors import UserError
from inferometer.serve.sim.faults import KINDS, WHENS
from inferometer.serve.sim.settings import Batch, Fixed, Settings, check, describe
from inferometer.units import parse_seconds

_ONLY_FIXED = ("ttft", "itl")
_ONLY_BATCH = (
    "prefill_rate", "prefill_overhead", "decode_step", "decode_per_seq", "kv_tokens", "chunked_prefill", "token_budget",
    "prefix_cache", "block_size",
)  # fmt: skip


def _parsed(parse: Callable[[str], float]) -> Callable[[click.Context, click.Parameter, str | None], float | None]:
    """A click callback that reads a value; `parse`'s ValueError says what is accepted."""

    def read(_: click.Context, option: click.Parameter, text: str | None) -> float | None:
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


def _table(rows: list[tuple[str, str]]) -> str:
    width = max(len(left) for left, _ in rows)
    return "\b\n" + "\n".join(f"  {left:<{width}}  {right}" for left, right in rows)


_EPILOG = f"""
\b
Fixed timing, the default: every request gets its first token after --ttft and each further one --itl later.
\b
  inferometer serve --ttft 50ms --itl 10ms --max-batch 64
\b
Batch engine, as LLM servers have, with any of --prefill-rate, --decode-step and their like: all sequences move together,
and a step lasts (prefill overhead + prefill tokens / prefill rate) + (decode step + sequences x cost a sequence).
\b
  inferometer serve --prefill-rate 20000 --decode-step 8ms --decode-per-seq 50us --max-batch 64 --prefix-cache

Faults: --fault KIND[=ARG][@WHEN], any number of them; the first that fits a request strikes it. KIND:

{_table([(kind + arg, text) for kind, (arg, text) in KINDS.items()])}

WHEN:

{_table(list(WHENS.items()))}

\b
  inferometer serve --fault reject=503@5% --fault stall=2s@#7 --fault freeze=2s@t=5s
"""


@click.command(epilog=_EPILOG, short_help="Start the reference server.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0 for all.")
@click.option("--port", type=int, default=8000, show_default=True, help="0: any free one.")
@click.option("--model", default="sim", show_default=True, help="Name of the model served.")
@click.option("--ttft", **_TIME, help="Fixed: time to the first token.  [default: 50ms]")
@click.option("--itl", **_TIME, help="Fixed: time between tokens.  [default: 10ms]")
@click.option(
    "--max-batch", type=int, help="Requests served at a time; the others queue.  [default: fixed no limit, batch 64]"
)
@click.option("--max-queue", type=int, help="Requests in the queue beyond which new ones get 503.  [default: no limit]")
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
@click.option(
    "--jitter", **_SHARE, default="0%", show_default=True, help="How far times vary to both sides, from --seed."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the jitter and of random faults.")
@click.option(
    "--tokens-per-chunk", type=int, default=1, show_default=True,
    help="Tokens in each streamed chunk; fixed: due with its first token; batch: made in one step.",
)  # fmt: skip
@click.option("--max-len", type=int, default=131_072, show_default=True, help="Tokens of prompt and answer together.")
@click.option(
    "--truth",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Log the server's own stamps, a JSON line a request.",
)
@click.option("--fault", "faults", multiple=True, metavar="FAULT", help="Inject a fault: see below. May be repeated.")
@click.option("--allow-fault-header", is_flag=True, help="Let a request ask for its fault: x-sim-fault: KIND[=ARG].")
@click.option("--api-key-env", metavar="NAME", help="Ask clients for the API key in this environment variable.")
def command(host: str, port: int, model: str, max_batch: int | None, jitter: float, **options: Any) -> None:
    """Start the reference server: OpenAI endpoints on a simulator whose timing is known."""
    settings = Settings(
        timing=_timing(options, {"jitter": jitter, "max_batch": max_batch}),
        host=host,
        port=port,
        model=model,
        api_key=_api_key(options["api_key_env"]),
        **{name: options[name] for name in _AS_THEY_ARE},
    )
    check(settings)
    from inferometer.serve.app import serve  # noqa: PLC0415  (heavy: not for --help)
    from inferometer.timing.loop import run  # noqa: PLC0415

    run(serve(settings, lambda url: click.echo(f"Listening on {url} (model {model})\n{describe(settings)}")))


_AS_THEY_ARE = ("seed", "tokens_per_chunk", "max_queue", "max_len", "truth", "faults", "allow_fault_header")


def _timing(options: dict[str, Any], common: dict[str, Any]) -> Fixed | Batch:
    """Fixed, unless an option of the batch engine was given."""
    fixed = [name for name in _ONLY_FIXED if options[name] is not None]
    batch = [name for name in _ONLY_BATCH if options[name] is not None]
    if fixed and batch:
        given = " and ".join("--" + names[0].replace("_", "-") for names in (fixed, batch))
        raise UserError(f"{given} do not go together", "the first is of fixed timing, the second of the batch engine")
    values = {name: options[name] for name in fixed + batch} | {k: v for k, v in common.items() if v is not None}
    if "block_size" in values:
        values["block"] = values.pop("block_size")
    return Batch(**values) if batch else Fixed(**values)


def _api_key(name: str | None) -> str | None:
    if name is None:
        return None
    key = os.environ.get(name)
    if not key:
        raise UserError(f"the environment variable {name} is not set", f"export {name}=KEY, or leave out --api-key-env")
    return key
