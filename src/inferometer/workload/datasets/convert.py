"""Converts datasets into batches for offline engines, and back: `inferometer data convert`.

    openai-batch  input of OpenAI's batch API: {"custom_id": ..., "method": "POST", "url": ..., "body": {...}} per line
    vllm-batch    the same for `vllm run-batch`, which has no limit on the number of lines
    batches       a batch per line: {"index": [...], "prompts": [...]}, with "input_ids" and "attention_mask" if padded
    jsonl         a request per line, as data.type: jsonl reads it

Every format of data.type: jsonl, csv or parquet can be read, and so can batches, and input and output files of the batch APIs.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from inferometer.apis import APIS, OUTPUT_LIMITS
from inferometer.config.data.datasets import Columns, Jsonl, OpenAiBatch, Output
from inferometer.errors import UserError
from inferometer.replacing import replaced
from inferometer.types import Request
from inferometer.units import NS
from inferometer.workload import tokenizer as tokenizers
from inferometer.workload.datasets import distinct, notes, requests_of
from inferometer.workload.datasets.conversations import Exchange, Record, response_text, texts, user
from inferometer.workload.datasets.files import open_rows
from inferometer.workload.datasets.rows import Row, Rows
from inferometer.workload.datasets.selection import select

FORMATS = ("openai-batch", "vllm-batch", "batches", "jsonl")
OPENAI_LIMIT = 50_000
"""Maximum number of requests in a file for OpenAI."""
_BLOCK = 1024


class Conversion(msgspec.Struct, frozen=True, kw_only=True):
    """What to convert to, and how rows are read."""

    to: str
    columns: Columns = msgspec.field(default_factory=Columns)
    template: str | None = None
    tokenizer: str | None = None
    rows: int = 0
    output: Output = 0
    """Tokens to request, for rows that do not say it; 0: no limit."""
    model: str = ""
    api: str = "chat"
    batch: int = 0
    """Requests per batch, or per file of a batch API; 0: all in one."""
    pad: Literal["", "left", "right"] = ""
    pad_id: int = 0
    sort: bool = False
    """By the number of tokens, so that the prompts of a batch are about equally long."""


class Converted(msgspec.Struct, frozen=True):
    """What has been written."""

    requests: int
    files: list[Path]
    notes: list[str]


def convert(source: str, target: str, how: Conversion) -> Converted:
    """Convert `source` and write the result to `target`; with several files, to `target` with numbers in its name."""
    kind = _kind_of(source)
    if how.pad and not how.tokenizer:
        raise UserError("--pad needs the tokenizer of the model", "give its folder with --tokenizer")
    if kind in ("batches", "batch-output"):
        if how.to != "jsonl":
            raise UserError(
                f"{source} has {kind.replace('-', ' ')}, which can only be converted to jsonl", "use --to jsonl"
            )
        rows = list(_rows_of_batches(source) if kind == "batches" else _rows_of_output(source))
        return Converted(len(rows), _write(Path(target), [rows]), [])
    spec = _spec(source, kind, how)
    noted: list[str] = notes(spec).get("notes", [])
    tally = _Tally()
    lines = _written(spec, how, tally)
    per_file = how.batch if how.to in ("openai-batch", "vllm-batch") else 0
    count = distinct(spec)
    if how.to == "openai-batch" and (per_file or count) > OPENAI_LIMIT:
        raise UserError(
            f"a file for OpenAI's batch API has at most {OPENAI_LIMIT:,} requests, and this one would have {per_file or count:,}",
            "use --batch 50000, which writes several files",
        )
    written = _write(Path(target), _divided(lines, per_file))
    if tally.cut:
        noted = [
            *noted,
            f"{tally.cut:,} conversation{'s' * (tally.cut != 1)} lost the turns after the first one without a recorded response",
        ]
    return Converted(tally.requests, written, noted)


def _spec(source: str, kind: str, how: Conversion) -> Jsonl | OpenAiBatch:
    if kind == "batch-input":
        return OpenAiBatch(path=source, model="file", tokenizer=how.tokenizer, rows=how.rows)
    return Jsonl(
        path=source,
        columns=how.columns,
        template=how.template,
        output=how.output,
        tokenizer=how.tokenizer,
        rows=how.rows,
    )


def _kind_of(source: str) -> str:
    """What a file contains, by its first row."""
    rows = open_rows(source, "jsonl")
    first = rows.take([0])[0] if len(rows) else None
    keys = first.keys() if isinstance(first, dict) else set()
    kinds = {"batch-input": {"custom_id", "body"}, "batch-output": {"custom_id", "response"}, "batches": {"index"}}
    return next((kind for kind, needed in kinds.items() if needed <= keys), "dataset")


# --- writing ---------------------------------------------------------------------------------------------------------


class _Tally(msgspec.Struct):
    """Counts what is written."""

    requests: int = 0
    cut: int = 0
    """Conversations with turns that could not be written, because the response before them is not known."""


def _written(spec: Jsonl | OpenAiBatch, how: Conversion, tally: _Tally) -> Iterator[Row]:
    if how.to == "jsonl":
        for block in _blocks(range(distinct(spec)), _BLOCK):
            tally.requests += len(block)
            yield from map(_jsonl_row, select(spec).records(block))
        return
    requests = (
        _sorted(spec, tally)
        if how.sort
        else enumerate(request for _, request in _single(spec, range(distinct(spec)), tally))
    )
    if how.to == "batches":
        while batch := list(islice(requests, how.batch or None)):
            tally.requests += len(batch)
            yield _batch_row([number for number, _ in batch], [request for _, request in batch], how)
        return
    for number, request in requests:
        tally.requests += 1
        if how.to == "openai-batch" and not how.batch and tally.requests > OPENAI_LIMIT:
            raise UserError(
                f"a file for OpenAI's batch API has at most {OPENAI_LIMIT:,} requests, and this one has more turns",
                "use --batch 50000, which writes several files",
            )
        yield _api_row(number, request, how)


def _single(
    spec: Jsonl | OpenAiBatch, positions: Sequence[int], tally: _Tally
) -> Iterator[tuple[tuple[int, int], Request]]:
    """The requests at these positions, each by itself and with its position and turn. A conversation becomes one request per turn, with the recorded responses
    before it, as far as there are any; OpenAI's messages are one request, up to their last response."""
    for block in _blocks(positions, _BLOCK):
        records = [_with_all_turns(record) for record in select(spec).records(block)]
        for position, request in zip(block, requests_of(spec, 0, block, records), strict=True):
            yield (position, 0), msgspec.structs.replace(request, later=())
            for number, turn in enumerate(request.later, 1):
                if turn.payload is None:
                    tally.cut += 1
                    break
                yield (position, number), Request(0, turn.payload, turn.n_in, turn.n_out, options=request.options)


def _with_all_turns(record: Record) -> Record:
    if record.form not in ("sharegpt", "turns"):
        return record
    return msgspec.structs.replace(record, form="turns", is_recorded=True)


def _sorted(spec: Jsonl | OpenAiBatch, tally: _Tally) -> Iterator[tuple[int, Request]]:
    """The requests by their number of tokens, each with its number in the file. They are made twice instead of kept."""
    names: list[tuple[int, int]] = []
    lengths: list[int] = []
    for name, request in _single(spec, range(distinct(spec)), tally):
        names.append(name)
        lengths.append(request.n_in)
    for block in _blocks(np.argsort(np.array(lengths), kind="stable").tolist(), _BLOCK):
        positions = sorted({names[number][0] for number in block})
        requests = dict(_single(spec, positions, _Tally()))
        yield from ((number, requests[names[number]]) for number in block)


def _blocks(order: Sequence[int], size: int) -> Iterator[list[int]]:
    return (list(order[start : start + size]) for start in range(0, len(order), max(size, 1)))


def _api_row(position: int, request: Request, how: Conversion) -> Row:
    """A line for a batch API."""
    body: dict[str, Any] = {"model": how.model or request.options.model} if how.model or request.options.model else {}
    if how.api == "chat":
        body["messages"] = _messages(request)
    else:
        body["input" if how.api == "embeddings" else "prompt"] = _text(request)
    body |= request.options.body
    if request.n_out and how.api != "embeddings" and not body.keys() & set(OUTPUT_LIMITS):
        body["max_completion_tokens" if how.api == "chat" else "max_tokens"] = request.n_out
    return {"custom_id": f"request-{position}", "method": "POST", "url": APIS[how.api].path, "body": body}


def _messages(request: Request) -> list[Any]:
    payload: Any = request.payload
    return payload if isinstance(payload, list) else [{"role": "user", "content": payload}]


def _text(request: Request) -> str:
    payload: Any = request.payload
    return payload if isinstance(payload, str) else "\n".join(texts(payload))


def _batch_row(positions: list[int], requests: list[Request], how: Conversion) -> Row:
    """A batch: prompts as text, or as messages if any of them has several."""
    row: Row = {"index": positions}
    if all(isinstance(request.payload, str) for request in requests):
        row["prompts"] = [request.payload for request in requests]
    else:
        row["messages"] = [_messages(request) for request in requests]
    if any(request.n_out for request in requests):
        row["max_tokens"] = [request.n_out for request in requests]
    return row | (_padded([_text(request) for request in requests], how) if how.pad else {})


def _padded(prompts: list[str], how: Conversion) -> Row:
    """Token ids, padded to the longest prompt of the batch, and which of them are not padding."""
    encode = tokenizers.load(how.tokenizer).encode
    ids = [encode(prompt) for prompt in prompts]
    longest = max(map(len, ids))
    padding = [longest - len(each) for each in ids]
    if how.pad == "left":
        input_ids = [[how.pad_id] * n + each for n, each in zip(padding, ids, strict=True)]
        mask = [[0] * n + [1] * len(each) for n, each in zip(padding, ids, strict=True)]
    else:
        input_ids = [each + [how.pad_id] * n for n, each in zip(padding, ids, strict=True)]
        mask = [[1] * len(each) + [0] * n for n, each in zip(padding, ids, strict=True)]
    return {"input_ids": input_ids, "attention_mask": mask}


def _jsonl_row(record: Record) -> Row:
    """A line that gives the same record again."""
    row: Row = {}
    first = record.exchanges[0]
    if record.form == "turns":
        row["turns"] = [_turn(each) for each in record.exchanges]
        row |= {"history": "recorded"} if record.is_recorded else {}
    elif record.form == "prompt" and len(first.added) == 1 and isinstance(first.added[0].get("content"), str):
        row["prompt"] = first.added[0]["content"]
        row |= {"response": response_text(first.response)} if first.response else {}
    else:
        row["messages"] = [message for each in record.exchanges for message in (*each.added, *each.response)]
    if record.output:
        row["output"] = record.output
    body = {name: value for name, value in record.options.body.items() if name not in OUTPUT_LIMITS}
    body |= {"model": record.options.model} if record.options.model else {}
    row |= {"headers": record.options.headers} if record.options.headers else {}
    return row | ({"body": body} if body else {})


def _turn(exchange: Exchange) -> str | Row:
    """The user's text if there is nothing else, otherwise an object."""
    text = exchange.added[0].get("content")
    is_text = len(exchange.added) == 1 and exchange.added[0] == user(str(text))
    turn: Row = {
        "prompt" if exchange.is_whole else "content" if is_text else "messages": text if is_text else exchange.added
    }
    turn |= {"response": exchange.response} if exchange.response else {}
    turn |= {"output": exchange.output} if exchange.output is not None else {}
    turn |= {"think": exchange.think / NS} if exchange.think is not None else {}
    return str(text) if turn.keys() == {"content"} else turn


def _divided(lines: Iterator[Row], per_file: int) -> Iterator[Iterator[Row]]:
    """The lines of each file."""
    if not per_file:
        yield lines
        return
    while block := list(islice(lines, per_file)):
        yield iter(block)


def _write(target: Path, files: Any) -> list[Path]:
    """Write one file, or several with numbers: out.jsonl, or out-0000.jsonl, out-0001.jsonl ..."""
    written: list[Path] = []
    blocks = iter(files)
    block, following = next(blocks, iter(())), next(blocks, None)
    is_only = following is None
    try:
        while block is not None:
            path = target if is_only else target.with_name(f"{target.stem}-{len(written):04d}{target.suffix}")
            with replaced(path) as partial, partial.open("wb") as file:
                file.writelines(msgspec.json.encode(row) + b"\n" for row in block)
            written.append(path)
            block, following = following, next(blocks, None)
    except OSError as error:
        raise UserError(f"{target} cannot be written: {error.strerror}", "give another file") from None
    return written


# --- back ------------------------------------------------------------------------------------------------------------


def _rows_of_batches(source: str) -> Iterator[Row]:
    """The requests of batches, in the order that they had before they were sorted."""
    rows: dict[int, Row] = {}
    for where, batch in _all(source):
        name = next((name for name in ("prompts", "messages") if isinstance(batch.get(name), list)), None)
        index, limits = batch.get("index"), batch.get("max_tokens")
        if name is None or not isinstance(index, list) or len(batch[name]) != len(index):
            raise UserError(
                f"{source}, {where}: expected as many prompts or messages as there are in index", "check the file"
            )
        for at, position in enumerate(index):
            limit = {"output": limits[at]} if isinstance(limits, list) and limits[at] else {}
            rows[position] = {name.removesuffix("s") if name == "prompts" else name: batch[name][at]} | limit
    return (rows[position] for position in sorted(rows))


def _rows_of_output(source: str) -> Iterator[Row]:
    """The responses of a batch API."""
    for _, line in _all(source):
        response = line.get("response") or {}
        body = response.get("body") or {}
        row: Row = {"custom_id": line.get("custom_id")}
        choice: Row = next(iter(body.get("choices") or ()), {})
        text = response_text([choice["message"]]) if isinstance(choice.get("message"), dict) else choice.get("text")
        if text is not None:
            row["response"] = text
        tokens = (body.get("usage") or {}).get("completion_tokens")
        row |= {"output": tokens} if isinstance(tokens, int) else {}
        row |= {"finish_reason": choice["finish_reason"]} if choice.get("finish_reason") else {}
        row |= {"error": line["error"]} if line.get("error") else {}
        yield row


def _all(source: str) -> Iterator[tuple[str, Row]]:
    """All rows of a file, each with where it is."""
    rows: Rows = open_rows(source, "jsonl")
    for block in _blocks(range(len(rows)), _BLOCK):
        for index, row in zip(block, rows.take(block), strict=True):
            if isinstance(row, ValueError):
                raise UserError(f"{source}, {rows.where(index)}: {row}", "fix the file")
            yield rows.where(index), row
