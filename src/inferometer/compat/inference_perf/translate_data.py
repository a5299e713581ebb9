"""The section `data` of inference-perf. Each data type has a row in TYPES."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from inferometer.compat.inference_perf.spec import Spec, at, is_exact, unsupported
from inferometer.compat.inference_perf.translate_lengths import deviation, is_nothing, length
from inferometer.compat.inference_perf.translate_load import requests_of
from inferometer.errors import UserError

_OUTPUT = 30
"""Tokens requested by data that does not say how many."""
_MOCK_PROMPTS = 1000
"""Different prompts of the mock data, after which they repeat."""
_HUB_ROWS = 1000
"""Rows of a hub's data set that are read at least: some cannot be used."""
_SHAREGPT = "anon8231489123/ShareGPT_Vicuna_unfiltered"
_CNN = "abisee/cnn_dailymail"
_FORMATS = {".json": "jsonl", ".jsonl": "jsonl", ".csv": "csv", ".tsv": "csv"}

Section = dict[str, Any]


def data(spec: Spec, tokenizer: str | None) -> tuple[Section, list[str]]:
    """Our section `data` and notes."""
    kind = at(spec, "data.type", "mock")
    if kind not in TYPES:
        raise unsupported("data.type", f"the data type {kind!r}", f"use {', '.join(TYPES)}")
    _refuse(spec, kind)
    section, note = TYPES[kind](spec)
    if tokenizer is not None:
        section["tokenizer"] = tokenizer
    if at(spec, "load.base_seed") is not None or seed_of(spec):
        section |= {"salt": "none"} if section["type"] in _SALTED else {}
    return section, [f"data.type {kind}: {note}."]


_SALTED = ("synthetic", "random", "shared_prefix", "conversation", "trace")


def seed_of(spec: Spec) -> int | None:
    """The seed of the data itself, or of the whole run; None if there is neither."""
    kind = at(spec, "data.type")
    own = at(spec, f"data.{kind}.seed") if kind in ("shared_prefix", "conversation_replay") else None
    seed = at(spec, "load.base_seed") if own is None else own
    return None if seed is None else abs(int(seed))


def has_sessions(spec: Spec) -> bool:
    """Whether requests are the turns of conversations."""
    kind = at(spec, "data.type")
    return kind == "conversation_replay" or (kind == "shared_prefix" and _is_multi_turn(spec))


def users_of(spec: Spec) -> int:
    """How many users take turns to send the requests of a stage; 0: the data has no users."""
    if at(spec, "data.type") != "shared_prefix" or not _is_multi_turn(spec):
        return 0
    groups, users = _group_counts(spec)
    return groups * users


def _refuse(spec: Spec, kind: str) -> None:
    """Refuse what is not supported, whatever the type."""
    for key in ("data.multimodal", "data.shared_prefix.multimodal"):
        if at(spec, key):
            raise unsupported(key, "data with images, videos or audio")
    if at(spec, "data.use_chat_template", False):
        raise unsupported("data.use_chat_template", "a prompt that contains the chat template")
    if at(spec, "data.corpus_file_path") is not None and kind != "synthetic":
        raise unsupported("data.corpus_file_path", f"a corpus for the data type {kind!r}")
    if at(spec, "data.trace") is not None and kind != "random":
        raise unsupported("data.trace", f"a trace with the data type {kind!r}", "use data.type random")
    api = at(spec, "api.type", "completion")
    if is_exact(spec) and api not in _APIS[kind]:
        raise UserError(
            f"inference-perf does not send {kind!r} to the API {api!r}", "leave compat: exact out", "data.type"
        )


# --- generated data --------------------------------------------------------------------------------------------------


def _mock(spec: Spec) -> tuple[Section, str]:
    text = "1 2 3" if at(spec, "api.type", "completion") == "completion" else "mock prompt"
    most = max((_requests(stage) for stage in at(spec, "load.stages", [])), default=1)
    prompts = [f"{text} {number}" for number in range(min(max(most, 1), _MOCK_PROMPTS))]
    return {"type": "prompts", "prompts": prompts, "output": _OUTPUT}, "short numbered prompts"


def _synthetic(spec: Spec) -> tuple[Section, str]:
    section = {"type": "synthetic", **_lengths(spec)}
    if corpus := at(spec, "data.corpus_file_path"):
        section["corpus"] = str(corpus)
    return section, "texts of a corpus with exactly the drawn number of tokens"


def _random(spec: Spec) -> tuple[Section, str]:
    if at(spec, "data.trace") is None:
        return {"type": "random", **_lengths(spec)}, "random words with exactly the drawn number of tokens"
    file = at(spec, "data.trace.file")
    if at(spec, "data.trace.format", "AzurePublicDataset") != "AzurePublicDataset":
        raise unsupported("data.trace.format", "this format", "use AzurePublicDataset")
    return {
        "type": "trace",
        "path": str(file),
        "format": "azure",
    }, "prompts and responses with the lengths of the trace"


def _lengths(spec: Spec) -> Section:
    made = {}
    for ours, theirs in (("input", "data.input_distribution"), ("output", "data.output_distribution")):
        value = at(spec, theirs)
        if value is None:
            raise UserError("missing", "give min, max, mean and std_dev", theirs)
        made[ours] = length(value, theirs)
    return made


def _shared_prefix(spec: Spec) -> tuple[Section, str]:
    groups, users = _group_counts(spec)
    prefix, question, output = (
        length(*_either(spec, name, other, default))
        for name, other, default in (
            ("system_prompt_len", "", 100),
            ("question_len", "question_distribution", 50),
            ("output_len", "output_distribution", 50),
        )
    )
    if _is_multi_turn(spec):
        return _multi_turn(spec, prefix, question, output)
    section = {
        "type": "shared_prefix",
        "groups": groups,
        "prompts": users,
        "prefix": prefix,
        "question": question,
        "output": output,
    }
    return section, f"{groups} prefixes with {users} questions each, in random order"


def _either(spec: Spec, name: str, other: str, default: int) -> tuple[Any, str]:
    """The length of shared_prefix under its own key or under the legacy key, and that key."""
    for key in ([f"data.shared_prefix.{other}"] if other else []) + [f"data.shared_prefix.{name}"]:
        if (value := at(spec, key)) is not None:
            return value, key
    return default, f"data.shared_prefix.{name}"


def _multi_turn(
    spec: Spec, prefix: int | Section, question: int | Section, output: int | Section
) -> tuple[Section, str]:
    """Each user is a session that has its share of the requests of the largest stage."""
    groups, users = _group_counts(spec)[0], users_of(spec)
    if isinstance(prefix, dict):
        what = "a system prompt of varying length in a conversation"
        raise unsupported("data.shared_prefix.system_prompt_len", what, "give a number")
    most = max((_requests(stage) for stage in at(spec, "load.stages", [])), default=1)
    turns = max(math.ceil(most / users), 1)
    section = {
        "type": "conversation", "turns": turns, "system": prefix, "share_system": groups, "input": question, "output": output,
    }  # fmt: skip
    return (
        section,
        f"{users} users in {groups} groups that share a system prompt, who take turns, with up to {turns} turns each",
    )


def _group_counts(spec: Spec) -> tuple[int, int]:
    names = ("num_unique_system_prompts", "num_groups"), ("num_users_per_system_prompt", "num_prompts_per_group")
    counts = [
        next((at(spec, f"data.shared_prefix.{name}") for name in both if at(spec, f"data.shared_prefix.{name}")), 10)
        for both in names
    ]
    return int(counts[0]), int(counts[1])


def _is_multi_turn(spec: Spec) -> bool:
    return bool(at(spec, "data.shared_prefix.enable_multi_turn_chat", False))


def _conversation_replay(spec: Spec) -> tuple[Section, str]:
    own = "data.conversation_replay"
    section: Section = {"type": "conversation", "system": int(at(spec, f"{own}.shared_system_prompt_len", 8359))}
    for ours, theirs, default in (
        ("turns", "turns_per_conversation", 10),
        ("input", "input_tokens_per_turn", 512),
        ("output", "output_tokens_per_turn", 256),
    ):
        section[ours] = length(at(spec, f"{own}.{theirs}", default), f"{own}.{theirs}")
    if not is_nothing(added := at(spec, f"{own}.dynamic_system_prompt_len")):
        section["own_system"] = length(added, f"{own}.dynamic_system_prompt_len")
    section |= _think(at(spec, f"{own}.tool_call_latency_sec"), f"{own}.tool_call_latency_sec")
    return section, "conversations with a common system prompt, each with its own history"


def _think(value: Any, key: str) -> Section:
    """The pause before a turn; inference-perf has whole seconds, as the numbers of a Distribution."""
    if is_nothing(value):
        return {}
    if not isinstance(value, dict):
        return {"think": f"{float(value):g}s"}
    kind, mean, std = value.get("type") or "normal", float(value.get("mean") or 0), deviation(value)
    if kind == "fixed" or not std:
        return {"think": f"{mean:g}s"}
    if kind != "lognormal":
        raise unsupported(f"{key}.type", f"a pause with the distribution {kind!r}", "use fixed or lognormal")
    return {"think": f"{mean:g}s", "think_distribution": "lognormal", "think_std": f"{std:g}s"}


def _requests(stage: dict[str, Any]) -> int:
    has_count = stage.get("num_requests") or (stage.get("rate") and stage.get("duration"))
    return requests_of(stage) if has_count else 1


# --- data sets -------------------------------------------------------------------------------------------------------


def _sharegpt(spec: Spec) -> tuple[Section, str]:
    if at(spec, "data.path") is None:
        return _conversations(spec, {"type": "hub", "path": _SHAREGPT, **_hub_rows(spec)})
    return _conversations(spec, _file(spec, "sharegpt"))


def _conversations_file(spec: Spec) -> tuple[Section, str]:
    if at(spec, "data.path") is None:
        raise UserError("missing", "give the file with the conversations", "data.path")
    return _conversations(spec, _file(spec, "sharegpt"))


def _conversations(spec: Spec, section: Section) -> tuple[Section, str]:
    if at(spec, "api.type", "completion") != "completion":
        turns = "whole" if is_exact(spec) else "last"
        what = "whole conversations" if is_exact(spec) else "conversations up to their last response"
        return section | {"turns": turns, "output": _OUTPUT}, f"{what}, {_OUTPUT} tokens requested"
    turns = "last" if at(spec, "data.type") == "infinity_instruct" else "first"
    return section | {
        "turns": turns,
        **_referenced(spec),
    }, "prompts, with as many tokens requested as the recorded response has"


def _cnn_dailymail(spec: Spec) -> tuple[Section, str]:
    path = at(spec, "data.path")
    section = (
        _file(spec, "") if path is not None else {"type": "hub", "path": _CNN, "subset": "3.0.0", **_hub_rows(spec)}
    )
    section |= {"template": "{article}", "columns": {"response": "highlights"}}
    return section | _referenced(spec), "articles, with as many tokens requested as the highlights have"


def _referenced(spec: Spec) -> Section:
    """As many tokens as the recorded response has, which rows must have; distributions only filter."""
    made: Section = {"output": "reference", "min_output": 1}
    for ours in ("input", "output"):
        if bounds := at(spec, f"data.{ours}_distribution"):
            made[f"min_{ours}"] = max(int(bounds.get("min", 10)), 1)
            made[f"max_{ours}"] = int(bounds.get("max", 1024))
    return made


def _hub_rows(spec: Spec) -> Section:
    """As many rows of a hub's data set as there are requests, so that none is sent twice."""
    return {"rows": max(sum(_requests(stage) for stage in at(spec, "load.stages", [])), _HUB_ROWS)}


def _file(spec: Spec, kind: str) -> Section:
    path = str(at(spec, "data.path"))
    return {"type": kind or _FORMATS.get(Path(path).suffix.lower(), "parquet"), "path": path}


TYPES: dict[str, Callable[[Spec], tuple[Section, str]]] = {
    "mock": _mock,
    "shareGPT": _sharegpt,
    "cnn_dailymail": _cnn_dailymail,
    "billsum_conversations": _conversations_file,
    "infinity_instruct": _conversations_file,
    "synthetic": _synthetic,
    "random": _random,
    "shared_prefix": _shared_prefix,
    "conversation_replay": _conversation_replay,
}
"""What each data type becomes: its section, and a note."""

_ALL = ("completion", "chat", "anthropic_messages")
_APIS = {
    "mock": _ALL, "shareGPT": _ALL, "cnn_dailymail": _ALL[:1], "billsum_conversations": _ALL[:2], "infinity_instruct": _ALL[:2],
    "synthetic": _ALL[:1], "random": _ALL[:1], "shared_prefix": _ALL[:2], "conversation_replay": _ALL[:1],
}  # fmt: skip
"""The APIs that inference-perf sends each data type to. Ours sends them to any, unless `compat: exact` is set."""
