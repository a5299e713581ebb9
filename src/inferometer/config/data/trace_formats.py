"""The formats of trace files: which columns they have, and in which unit their times are. Names are compared without case."""

import gzip
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

import msgspec

FormatName = Literal["auto", "azure", "burstgpt", "mooncake", "bailian", "vidur", "tracelab", "aiperf", "csv", "jsonl"]
ColumnName = Literal["time", "input", "output", "prompt", "session", "delay", "hash_ids"]
"""Columns that a plain CSV or JSONL file may have."""


class Format(msgspec.Struct, frozen=True):
    """One format: for each column that we know, the names that it may have in the file."""

    columns: Mapping[str, tuple[str, ...]]
    recognised_by: frozenset[str] = frozenset()
    """Names that tell a file of this format from others, in lower case."""
    unit: Literal["s", "ms", "us", "ns"] = "s"
    """Unit of times that are numbers, and of delays."""
    block: int = 0
    """Tokens per hash id; 0: there are no hash ids."""
    turns: Literal["whole", "added"] = "whole"
    """What the length of a session's later turn counts: its whole prompt, or what it adds."""
    has_turns: bool = False
    """A row has all turns of a session."""
    drops_empty: bool = False
    """A row without output tokens is a request that failed, and is left out."""


FORMATS: dict[str, Format] = {
    "azure": Format(
        columns={"time": ("TIMESTAMP",), "input": ("ContextTokens",), "output": ("GeneratedTokens",)},
        recognised_by=frozenset({"contexttokens", "generatedtokens"}),
    ),
    "burstgpt": Format(
        columns={
            "time": ("Timestamp",),
            "input": ("Request tokens",),
            "output": ("Response tokens",),
            "session": ("Session ID",),
            "elapsed": ("Elapsed time",),
        },
        recognised_by=frozenset({"request tokens", "response tokens"}),
        drops_empty=True,
    ),
    "bailian": Format(
        columns={
            "time": ("timestamp",),
            "input": ("input_length",),
            "output": ("output_length",),
            "chat": ("chat_id",),
            "parent": ("parent_chat_id",),
            "hash_ids": ("hash_ids",),
        },
        recognised_by=frozenset({"chat_id", "parent_chat_id"}),
        block=16,
    ),
    "tracelab": Format(
        columns={
            "time": ("arrival_time",),
            "session": ("session_id",),
            "prefix": ("prefix_len",),
            "input": ("input_len",),
            "output": ("output_len",),
            "delay_after": ("tool_wait_after_ms",),
        },
        recognised_by=frozenset({"prefix_len", "input_len", "round_idx"}),
        unit="ms",
    ),
    "vidur": Format(
        columns={"time": ("arrived_at",), "input": ("num_prefill_tokens",), "output": ("num_decode_tokens",)},
        recognised_by=frozenset({"num_prefill_tokens", "num_decode_tokens"}),
    ),
    "aiperf": Format(
        columns={
            "time": ("timestamp",),
            "input": ("input_length",),
            "output": ("output_length", "max_tokens"),
            "prompt": ("text",),
            "session": ("session_id",),
            "delay": ("delay",),
            "hash_ids": ("hash_ids",),
        },
        recognised_by=frozenset({"turns"}),
        unit="ms",
        block=512,
        turns="added",
        has_turns=True,
    ),
    "mooncake": Format(
        columns={
            "time": ("timestamp",),
            "input": ("input_length",),
            "output": ("output_length",),
            "session": ("session_id",),
            "delay": ("delay",),
            "hash_ids": ("hash_ids",),
        },
        recognised_by=frozenset({"input_length", "output_length"}),
        unit="ms",
        block=512,
        turns="added",
    ),
}
PLAIN = Format(
    columns={
        "time": ("time", "timestamp", "arrival_time", "arrived_at"),
        "input": ("input", "input_tokens", "input_length", "prompt_tokens"),
        "output": ("output", "output_tokens", "output_length", "completion_tokens"),
        "prompt": ("prompt", "text_input"),
        "session": ("session", "session_id"),
        "delay": ("delay",),
        "hash_ids": ("hash_ids",),
    },
    block=512,
    turns="added",
)
"""`csv` and `jsonl`: the names can be given with `data.columns`."""

GRAPHS = (
    ({"requests", "block_size", "hash_id_scope"}, "a trace of an agent (WEKA)"),
    ({"event", "timestamp"}, "a log of request events (Dynamo)"),
    ({"round_index", "timing_events"}, "a trace of an agent's rounds (TraceLab)"),
    ({"session_id", "spawns"}, "a graph of sessions (AIPerf)"),
    ({"session_id", "orchestrator"}, "a graph of sessions (AIPerf)"),
)
"""Keys of files whose requests depend on one another in more ways than the turns of a session do."""


def has_times(path: str, columns: Mapping[str, str]) -> bool:
    """Whether a trace has arrival times, by the first line of the file. A file that cannot be read counts as having them, so
    that the error is reported when the trace is read."""
    try:
        with Path(path).expanduser().open("rb") as file:
            line = file.readline()
        if line.startswith(b"\x1f\x8b"):
            with gzip.open(Path(path).expanduser()) as unpacked:
                line = unpacked.readline()
        names = _keys(msgspec.json.decode(line)) if line.lstrip().startswith(b"{") else split_header(line)[0]
    except (OSError, EOFError, ValueError, TypeError):
        return True
    known = FORMATS.get("" if columns else format_of(names) or "", PLAIN)
    given = {name.lower() for name in names}
    return "time" in columns or any(choice.lower() in given for choice in known.columns["time"])


def _keys(row: dict[str, object]) -> list[str]:
    """The keys of a row, and those of its first turn."""
    turns = row.get("turns")
    first = turns[0] if isinstance(turns, list) and turns else None
    return [*row, *(first if isinstance(first, dict) else ())]


def split_header(line: bytes) -> tuple[list[str], str]:
    """The names of the columns of a CSV file, and what separates them."""
    header = line.decode("utf-8", "replace").removeprefix("\ufeff").rstrip("\r\n")
    delimiter = max(",\t;", key=header.count)
    return [name.strip().strip('"') for name in header.split(delimiter)], delimiter


def format_of(names: Iterable[str]) -> str | None:
    """The format of a file with these columns; None: it is a plain file."""
    given = {name.lower() for name in names}
    return next((name for name, known in FORMATS.items() if known.recognised_by <= given), None)


def graph_of(row: Mapping[str, object]) -> str | None:
    """What a file with this row is if its requests form a graph; None: they do not."""
    turns = row.get("turns")
    for turn in turns if isinstance(turns, list) else ():
        if isinstance(turn, dict) and turn.keys() & {"messages", "spawns", "forks"}:
            return "a graph of sessions (AIPerf)"
    given = row.keys()
    return next((what for keys, what in GRAPHS if keys <= given), None)
