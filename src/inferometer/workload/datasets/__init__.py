"""Prompts, conversations and whole requests from files, hubs and Python code. Request i uses row i modulo their number.

    rows.py           rows that are read when they are needed: JSON and lines
    arrow.py          the same for CSV, Parquet and Arrow
    files.py          opens a file in whatever format it is
    hub.py            datasets from a hub
    python_code.py    requests that a user's function generates
    conversations.py  ShareGPT's and OpenAI's messages in one form: exchanges
    shapes.py         which columns are the prompt, the response and so on
    batch.py          lines of OpenAI's batch API
    selection.py      which rows are used: broken ones are skipped, others are filtered by length
    steps.py          what is sent of a conversation
    convert.py        `inferometer data convert`

A source gives rows, a row becomes a record, and a record becomes a request or a session.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.apis import APIS, Api
from inferometer.config.data.datasets import Hub, PythonCode, RowsSection
from inferometer.errors import UserError
from inferometer.random_numbers import shuffled
from inferometer.types import Messages, Request, Turn
from inferometer.workload import lengths, tokenizer
from inferometer.workload.datasets import files, hub, python_code
from inferometer.workload.datasets.conversations import Record
from inferometer.workload.datasets.selection import select
from inferometer.workload.datasets.steps import Step, steps

DEFAULT_OUTPUT = 128
"""Tokens requested with `output: reference` for a row that has no reference response."""


def build(spec: RowsSection, seed: int, ids: Sequence[int]) -> list[Request]:
    selection = select(spec)
    n = len(selection)
    order = shuffled(seed, n, "rows") if spec.shuffle else np.arange(n)
    wanted = order[np.asarray(ids, dtype=np.int64) % n]
    positions, inverse = np.unique(wanted, return_inverse=True)
    records = selection.records(positions.tolist())
    made = requests_of(spec, seed, positions.tolist(), records)
    return [_with_id(made[row], id) for id, row in zip(ids, inverse.tolist(), strict=True)]


def distinct(spec: RowsSection) -> int:
    return len(select(spec))


def content(spec: Any) -> bytes:
    """A hash of the file, or of what the Python function generates."""
    if isinstance(spec, PythonCode):
        return hashlib.sha256(python_code.generated(spec)).digest()
    return files.digest(str(hub.rows_file(spec)) if isinstance(spec, Hub) else spec.path)


def has_sessions(spec: RowsSection) -> bool:
    return select(spec).has_turns


def pinned(spec: RowsSection, seed: int) -> RowsSection:
    """The same data with the commit of a hub's dataset, or with what the Python function has generated."""
    if isinstance(spec, PythonCode):
        return python_code.pinned(spec, seed)
    return hub.pinned(spec) if isinstance(spec, Hub) else spec


def check(spec: Any, api: Api) -> None:
    """Raise UserError if the rows are for another API."""
    urls = sorted(select(spec).urls - {""})
    wrong = [url for url in urls if url != api.path]
    if not wrong:
        return
    if len(urls) > 1:
        raise UserError(
            f"{spec.path} has requests for {' and '.join(urls)}", "divide it: a run is for one endpoint", "data.path"
        )
    fitting = next((row.name for row in APIS.values() if row.path == wrong[0]), None)
    remedy = f"use {{server.api={fitting}}}" if fitting else f"use a file for {api.path or 'another API'}"
    raise UserError(f"the requests are for {wrong[0]}, but server.api is {api.name}", remedy, "data.path")


def notes(spec: Any) -> dict[str, Any]:
    """What a user should know about the rows: how many were skipped and why, and who counted tokens."""
    selection = select(spec)
    noted: dict[str, Any] = {}
    lines: list[str] = []
    if selection.skipped:
        noted["skipped"] = {"rows": selection.skipped, "of": selection.total, "first": selection.first_skipped}
        lines.append(
            f"{selection.skipped:,} of {selection.total:,} rows were skipped; the first is {selection.first_skipped}"
        )
    if selection.filtered:
        noted["filtered"] = selection.filtered
        counter = "" if spec.tokenizer else ", counted by the built-in tokenizer"
        lines.append(f"{selection.filtered:,} rows were left out because of their length{counter}")
    elif getattr(spec, "output", None) == "reference" and not spec.tokenizer:
        lines.append("reference responses were counted by the built-in tokenizer")
    return noted | ({"notes": lines} if lines else {})


# --- requests --------------------------------------------------------------------------------------------------------


def requests_of(spec: Any, seed: int, positions: list[int], records: list[Record]) -> list[Request]:
    """One request per record. The lengths of responses depend on the position, so that a row is always sent the same."""
    output = getattr(spec, "output", 0)
    made = [steps(record, spec) for record in records]
    counter = tokenizer.load(spec.tokenizer)
    inputs = iter(_counts(counter, [step.texts for row in made for step in row]))
    wanted = [[step.reference] if output == "reference" and step.reference else [] for row in made for step in row]
    references = iter(_counts(counter, wanted))
    sampled = _sampled(output, seed, positions, max(map(len, made)))
    requests = []
    for index, (record, row) in enumerate(zip(records, made, strict=True)):
        counts = [next(inputs) for _ in row]
        limits = []
        for turn, (step, reference) in enumerate([(step, next(references)) for step in row]):
            limit = record.output if step.output is None else step.output
            limits.append(limit if limit is not None else reference or int(sampled[turn][index]))
        requests.append(_request(record, row, counts, limits))
    return requests


def _sampled(output: Any, seed: int, positions: list[int], turns: int) -> list[NDArray[np.int64]]:
    """Tokens to request in each turn of each row, if the row does not say it."""
    length = DEFAULT_OUTPUT if output == "reference" else output
    return [lengths.sample(length, seed, positions, f"output {turn}" if turn else "output") for turn in range(turns)]


def _counts(counter: tokenizer.Tokenizer, groups: Sequence[Sequence[str]]) -> list[int]:
    """Tokens of each group of texts."""
    following = iter(counter.count_batch([text for group in groups for text in group]))
    return [sum(next(following) for _ in group) for group in groups]


def _request(record: Record, row: list[Step], counts: list[int], limits: list[int]) -> Request:
    later, total = [], counts[0]
    for step, count, limit in zip(row[1:], counts[1:], limits[1:], strict=True):
        total = count if step.is_whole else total + count
        n_in = count if step.prompt is None else total
        payload = None if step.prompt is None else _payload(step.prompt) if step.is_whole else step.prompt
        later.append(Turn(step.messages, n_in, limit, step.think, payload=payload))
    return Request(0, _payload(row[0].messages), counts[0], limits[0], later=tuple(later), options=record.options)


def _payload(messages: Messages) -> str | Messages:
    """A single message of the user is a prompt, which APIs without messages can send, too."""
    if len(messages) == 1 and messages[0].keys() == {"role", "content"} and messages[0]["role"] == "user":
        text = messages[0]["content"]
        return text if isinstance(text, str) else messages
    return messages


def _with_id(request: Request, id: int) -> Request:
    return Request(id, request.payload, request.n_in, request.n_out, later=request.later, options=request.options)
