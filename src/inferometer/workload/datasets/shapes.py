"""From the columns of a row to a record: which columns are the prompt, the system prompt, the response, and the number of tokens.

SHAPES lists what is known about public datasets. `columns` and `template` of the config override it.
"""

import difflib
import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from inferometer.config.data.datasets import Columns
from inferometer.config.fields import is_valid_header
from inferometer.types import Messages, RequestOptions
from inferometer.workload.datasets.conversations import (
    MEDIA,
    Exchange,
    Record,
    conversation,
    conversation_of_rows,
    number_of_tokens,
    tool_options,
    user,
    users_turns,
)
from inferometer.workload.datasets.rows import Row, kind_of


class Shape(NamedTuple):
    """How the prompt is made from columns."""

    needs: tuple[str, ...]
    """The columns by which it is recognised."""
    template: str
    more: tuple[str, ...] = ()
    """Columns that are appended to it, those that exist and are not empty."""
    response: tuple[str, ...] = ()
    """Columns that may have the reference response; the first that exists is used."""


_ANSWERS = ("response", "completion", "answer", "answers", "output", "reference", "target")

SHAPES = (
    Shape(("article", "highlights"), "Summarize the following article.\n\n{article}", (), ("highlights",)),  # CNN/DailyMail
    Shape(("document", "summary"), "Summarize the following article.\n\n{document}", (), ("summary",)),  # XSum
    Shape(("text", "summary"), "Summarize the following text.\n\n{text}", (), ("summary",)),  # BillSum
    Shape(
        ("context", "question"),
        "Answer the question from the context.\n\nContext: {context}\n\nQuestion: {question}",
        (),
        ("answers", "answer"),
    ),  # SQuAD
    Shape(("instruction",), "{instruction}", ("input", "context"), ("output", "response")),  # Alpaca, Dolly
    *(
        Shape((name,), f"{{{name}}}", (), _ANSWERS)
        for name in ("prompt", "input", "question", "query", "text_input", "text", "content")
    ),
)  # fmt: skip
"""The first whose columns all exist is used."""

_CONVERSATIONS = ("conversations", "messages", "conversation")
_OUTPUTS = ("output", "output_length", "output length", "output_tokens", "max_tokens", "max_completion_tokens")
_SYSTEMS = ("system", "system_prompt")
_BRACES = re.compile(r"\{\{|\}\}|\{([^{}]+)\}")

READABLE = "prompt, messages, conversations or turns"


def is_one_message(row: Row) -> bool:
    """Whether a row is one message of a conversation that has several rows."""
    return "conversation_id" in row and "role" in row


def reader(columns: Columns, template: str | None) -> Callable[[list[Row]], list[Record]]:
    """The function that makes records from a row, or from all rows of a conversation. It raises ValueError with the reason."""

    def read(rows: list[Row]) -> list[Record]:
        if is_one_message(rows[0]):
            return [conversation_of_rows(rows)]
        row = rows[0]
        names = _names(tuple(row))
        if "requests" in names and not columns.prompt and isinstance(row[names["requests"]], list):  # AIBrix
            requests = row[names["requests"]]
            return [
                _record(each, _names(tuple(each)), columns, template) for each in requests if isinstance(each, dict)
            ]
        return [_record(row, names, columns, template)]

    return read


@lru_cache(maxsize=1024)
def _names(keys: tuple[str, ...]) -> dict[str, str]:
    """The columns by their names in lower case."""
    return {str(key).lower(): key for key in keys}


def _record(row: Row, names: dict[str, str], columns: Columns, template: str | None) -> Record:
    options = _options(row)
    system = _system(row, names, columns)
    if template is None and columns.prompt is None:
        _refuse_media(row, names)
        column = columns.messages or next((names[name] for name in _CONVERSATIONS if name in names), None)
        if column is not None:
            exchanges, form = conversation(column, cell(row, column))
            return Record(_with_system(exchanges, system), form, _output(row, names, columns), options)
        if "turns" in names:
            exchanges, output = _with_system(users_turns(row), system), _output(row, names, columns)
            is_recorded = row.get("history") == "recorded"
            return Record(exchanges, "turns", output, options, is_recorded=is_recorded)
    shape = _shape(row, names, columns, template)
    prompt = _prompt(shape, row, names)
    response = _response(shape, row, names, columns)
    if isinstance(prompt, list):
        exchanges, form = conversation(columns.prompt or shape.needs[0], prompt)
        return Record(_with_system(exchanges, system), form, _output(row, names, columns), options)
    answer: Messages = [{"role": "assistant", "content": response}] if response else []
    exchange = Exchange([user(prompt)], answer)
    output = _output(row, names, columns, "output" if shape.needs == ("instruction",) else "")
    return Record(_with_system((exchange,), system), "prompt", output, options)


# --- the prompt ------------------------------------------------------------------------------------------------------


def _shape(row: Row, names: dict[str, str], columns: Columns, template: str | None) -> Shape:
    if template is not None:
        return Shape(("template",), template, (), _ANSWERS)
    if columns.prompt is not None:
        return Shape((columns.prompt,), f"{{{columns.prompt}}}", (), _ANSWERS)
    shape = find_shape(tuple(names))
    if shape is None:
        hint = "; is this a file for data.type: openai-batch?" if {"custom_id", "body"} <= row.keys() else ""
        raise ValueError(f"it has no {READABLE} (its keys: {', '.join(sorted(map(str, row)))[:100] or 'none'}{hint})")
    return shape


@lru_cache(maxsize=1024)
def find_shape(names: tuple[str, ...]) -> Shape | None:
    """The shape of a row with these columns, in lower case; None if none is known."""
    there = set(names)
    return next((shape for shape in SHAPES if there.issuperset(shape.needs)), None)


def has_prompt(columns: Iterable[str]) -> bool:
    """Whether requests can be made from these columns without more information."""
    there = {name.lower() for name in columns}
    lists = {*_CONVERSATIONS, "turns", "requests", "conversation_id"}
    return bool(there & lists) or find_shape(tuple(there)) is not None


def _prompt(shape: Shape, row: Row, names: dict[str, str]) -> str | list[Any]:
    whole = _BRACES.fullmatch(shape.template)
    if whole and whole[1]:  # one column and nothing else
        value = cell(row, names.get(whole[1], whole[1]))
        if isinstance(value, list) and value and isinstance(value[0], dict):
            return value
        if not isinstance(value, str):
            raise ValueError(f"{whole[1]} must be a string, got {kind_of(value)}")
        text = value
    else:
        text = fill(shape.template, row, names)
    for name in shape.more:
        further = row.get(names.get(name, name))
        if isinstance(further, str) and further.strip():
            text += f"\n\n{further}"
    if not text and not _has_own_prompt(row):
        raise ValueError(f"{shape.needs[0]} is empty")
    return text


def _has_own_prompt(row: Row) -> bool:
    """Whether the further fields of the body have a prompt, such as several ones."""
    body = row.get("body")
    return isinstance(body, dict) and not body.keys().isdisjoint(("prompt", "input", "messages"))


def fill(template: str, row: Row, names: dict[str, str] | None = None) -> str:
    """Replace the columns in braces by their values."""

    def value(match: re.Match[str]) -> str:
        if match[1] is None:
            return match[0][0]
        found = cell(row, (names or {}).get(match[1], match[1]))
        return found if isinstance(found, str) else msgspec.json.encode(found).decode()

    return _BRACES.sub(value, template)


def template_columns(template: str) -> list[str]:
    """The columns that a template names."""
    return [match[1] for match in _BRACES.finditer(template) if match[1] is not None]


def cell(row: Row, column: str) -> Any:
    if column not in row:
        raise ValueError(missing(column, row))
    return row[column]


def missing(column: str, columns: Iterable[str]) -> str:
    """The message about a column that does not exist."""
    there = [str(name) for name in columns]
    near = difflib.get_close_matches(column, there, 1, 0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"there is no column {column!r} (the columns: {', '.join(there)[:200] or 'none'}{hint})"


def _refuse_media(row: Row, names: dict[str, str]) -> None:
    for name in MEDIA:
        if name in names and row[names[name]]:
            raise ValueError(
                f"it has a column {names[name]!r}, which cannot be sent; to send the text alone, name its column in data.columns"
            )


# --- everything else -------------------------------------------------------------------------------------------------


def _system(row: Row, names: dict[str, str], columns: Columns) -> str:
    if columns.system is not None:
        value = cell(row, columns.system)
    else:
        value = next((row[names[name]] for name in _SYSTEMS if name in names), None)
    return value if isinstance(value, str) else ""


def _with_system(exchanges: tuple[Exchange, ...], system: str) -> tuple[Exchange, ...]:
    if not system or exchanges[0].added[0].get("role") == "system":
        return exchanges
    first = msgspec.structs.replace(exchanges[0], added=[{"role": "system", "content": system}, *exchanges[0].added])
    return (first, *exchanges[1:])


def _response(shape: Shape, row: Row, names: dict[str, str], columns: Columns) -> str | None:
    if columns.response is not None:
        return _answer(cell(row, columns.response))
    for name in shape.response:
        if name in names and (text := _answer(row[names[name]])) is not None:
            is_count = name == "output" and text.isdecimal() and shape.needs != ("instruction",)
            return None if is_count else text
    return None


def _answer(value: Any) -> str | None:
    """The text of a response: SQuAD has a list of texts, and others have a list of responses."""
    if isinstance(value, dict):
        value = value.get("text")
    if isinstance(value, list):
        value = value[0] if value else None
    return value if isinstance(value, str) and value else None


def _output(row: Row, names: dict[str, str], columns: Columns, not_this: str = "") -> int | None:
    """The number of tokens to request. In some datasets, `output` is the response instead."""
    if columns.output is not None:
        return number_of_tokens(columns.output, cell(row, columns.output))
    for name in _OUTPUTS:
        value = row[names[name]] if name in names and name != not_this else None
        if value is not None and not (name == "output" and isinstance(value, str) and not value.isdecimal()):
            return number_of_tokens(names[name], value)
    return None


def _options(row: Row) -> RequestOptions:
    """The fields of the body and the headers that a row adds to its request. A model in the body is that of the request."""
    options = tool_options(row)
    body, headers = row.get("body"), row.get("headers")
    if not isinstance(body, dict) and not isinstance(headers, dict):
        return options
    own = dict(body) if isinstance(body, dict) else {}
    model = own.pop("model", "")
    if not isinstance(model, str):
        raise ValueError(f"body.model must be a string, got {kind_of(model)}")
    return RequestOptions(model, _headers(headers) if isinstance(headers, dict) else {}, options.body | own)


def _headers(headers: dict[str, Any]) -> dict[str, str]:
    for name, value in headers.items():
        if not isinstance(value, str):
            raise ValueError(f"headers.{name} must be a string, got {kind_of(value)}")
        if not is_valid_header(name, value):
            raise ValueError(
                f"{name!r} is not a valid header: its name or value has other than printable ASCII characters"
            )
    return headers
