"""The sections `api`, `server` and `tokenizer` of inference-perf, and the limits of single requests."""

from typing import Any

from inferometer.compat.inference_perf.spec import Spec, at, is_exact, unsupported
from inferometer.config.secret import is_secret
from inferometer.errors import UserError

_APIS = {"completion": "completions", "chat": "chat", "anthropic_messages": "messages"}
_TIMEOUT = 300.0
"""Seconds that a request may take if load.request_timeout is null."""
_LOAD_TIMEOUT = 300
_GENERATED = ("random", "synthetic", "shared_prefix", "conversation_replay")
_COUNTED = ("shareGPT", "cnn_dailymail", "billsum_conversations", "infinity_instruct")


def server(spec: Spec) -> tuple[dict[str, Any], list[str]]:
    """Our section `server`, without secret headers, and notes."""
    if at(spec, "server") is None:
        raise UserError("the section is missing", "give at least `server: {base_url: ...}`", "server")
    if at(spec, "server.type") == "mock":
        raise unsupported("server.type", "a mock server", "start one: `inferometer serve --sim`")
    api, api_note = _api(spec)
    timeout = float(at(spec, "load.request_timeout", _TIMEOUT))
    section: dict[str, Any] = {
        "url": at(spec, "server.base_url"),
        "api": api,
        "stream": at(spec, "api.streaming", False),
        "ignore_eos": at(spec, "server.ignore_eos", True) and api != "messages",
        "timeouts": {"connect": f"{timeout:g}s", "total": f"{timeout:g}s"},
    }
    notes = [f"{api_note}.", f"load.request_timeout: server.timeouts.total {timeout:g}s."]
    if model := at(spec, "server.model_name"):
        section["model"] = model
    else:
        notes.append("server.model_name is not set: the first model that the server lists.")
    if body := _body(spec, api):
        section["body"] = body
        notes.append("api.response_format: server.body.response_format.")
    if headers := {name: value for name, value in _headers(spec).items() if not is_secret(name)}:
        section["headers"] = headers
    if tls := _tls(spec):
        section["tls"] = tls
        notes.append("server.cert_path, server.key_path: server.tls.")
    return section, notes


def _api(spec: Spec) -> tuple[str, str]:
    kind = at(spec, "api.type", "completion")
    if kind not in _APIS:
        raise unsupported("api.type", f"the API {kind!r}", f"use {', '.join(_APIS)}")
    if is_exact(spec) and kind == "chat" and at(spec, "data.type") == "shared_prefix":
        return "completions", "api.type chat: server.api completions, as inference-perf does with shared_prefix"
    return _APIS[kind], f"api.type {kind}: server.api {_APIS[kind]}"


def _body(spec: Spec, api: str) -> dict[str, Any]:
    wanted = at(spec, "api.response_format")
    if wanted is None or api == "messages":
        return {}
    if wanted.get("type", "json_schema") == "json_object":
        return {"response_format": {"type": "json_object"}}
    schema = {"name": wanted.get("name") or "structured_output", "schema": wanted.get("json_schema") or {}}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


def _tls(spec: Spec) -> dict[str, str]:
    files = {"cert": at(spec, "server.cert_path"), "key": at(spec, "server.key_path")}
    return {name: path for name, path in files.items() if path}


# --- secrets ---------------------------------------------------------------------------------------------------------


def secret_headers(spec: Spec) -> dict[str, str]:
    """The API key as a header, and the headers of the config that may contain a secret."""
    headers = _headers(spec)
    if key := at(spec, "server.api_key"):
        name, value = (
            ("x-api-key", key) if at(spec, "api.type") == "anthropic_messages" else ("Authorization", f"Bearer {key}")
        )
        if not any(own.lower() == name.lower() for own in headers):  # headers replace equal names
            headers[name] = value
    return {name: value for name, value in headers.items() if is_secret(name)}


def environment(spec: Spec) -> dict[str, str]:
    """The hub's token."""
    token = at(spec, "tokenizer.token")
    return {"HF_TOKEN": str(token)} if token else {}


def _headers(spec: Spec) -> dict[str, str]:
    return {str(name): str(value) for name, value in at(spec, "api.headers", {}).items()}


# --- tokenizer -------------------------------------------------------------------------------------------------------


def tokenizer(spec: Spec) -> tuple[str | None, list[str]]:
    """The tokenizer of our section `data`, and notes; None: the server alone counts tokens."""
    if at(spec, "tokenizer.load_timeout", _LOAD_TIMEOUT) != _LOAD_TIMEOUT:
        raise unsupported("tokenizer.load_timeout", "a time limit for loading the tokenizer")
    notes = []
    if at(spec, "tokenizer.trust_remote_code", False):
        notes.append("tokenizer.trust_remote_code: no code is run, the tokenizer's files are read.")
    name = at(spec, "tokenizer.pretrained_model_name_or_path")
    if name is None and (at(spec, "tokenizer") is not None or _needs_tokenizer(spec)):
        name = at(spec, "server.model_name")
    if name is not None:
        return name, [*notes, f"tokenizer: data.tokenizer {name}."]
    if _needs_tokenizer(spec):
        notes.append("neither the tokenizer nor the model is named: the built-in tokenizer counts.")
    return None, notes


def _needs_tokenizer(spec: Spec) -> bool:
    """Whether the data cannot be made without counting tokens."""
    kind = at(spec, "data.type", "mock")
    return kind in _GENERATED or (kind in _COUNTED and at(spec, "api.type", "completion") == "completion")
