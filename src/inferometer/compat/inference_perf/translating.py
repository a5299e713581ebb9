"""An effective config of inference-perf, as a config of our own.

translate_server.py   api, server, tokenizer
translate_load.py     load: stages, the client, adapters
translate_data.py     data, with translate_lengths.py for distributions
sweep.py              load.sweep: finds its rates by a run
breakers.py           circuit_breakers, judged while a run is in progress
differences.py        what differs from inference-perf, by default and with `compat: exact`

A key or value that is not supported raises UserError with that key.
"""

from typing import Any

from inferometer import config as configs
from inferometer.compat.inference_perf import breakers, translate_data, translate_load, translate_server
from inferometer.compat.inference_perf.differences import DIFFERENCES
from inferometer.compat.inference_perf.schema import refuse
from inferometer.compat.inference_perf.spec import Spec, Translation, at, is_exact
from inferometer.compat.inference_perf.sweep import with_sweep_stages
from inferometer.config.schema import Config

__all__ = ["DIFFERENCES", "to_config", "translate", "with_sweep_stages"]

_MODEL_LEN = 225_000
"""Default of data.conversation_replay.max_model_len; null: no limit."""


def translate(spec: Spec) -> Translation:
    """Translate an effective config. The rates of `load.sweep` must be known: see `with_sweep_stages`."""
    _refuse(spec)
    server, server_notes = translate_server.server(spec)
    has_sessions = translate_data.has_sessions(spec)
    users = translate_data.users_of(spec)
    load, load_notes = translate_load.load(spec, "requests" if has_sessions else "sessions", users)
    tokenizer, tokenizer_notes = translate_server.tokenizer(spec)
    data, data_notes = translate_data.data(spec, tokenizer)
    client, client_notes = translate_load.client(spec)
    data, adapter_notes = _divided(spec, data)
    config: dict[str, Any] = {"server": server, "data": data, "load": load, "client": client}
    if sessions := _sessions(spec):
        config["sessions"] = sessions
    if (seed := translate_data.seed_of(spec)) is not None:
        config["seed"] = seed
    keep_notes = []
    if _keeps_text(spec):
        config["keep"] = "text"
        keep_notes = ["report.request_lifecycle.per_request: keep text."]
    notes = (*server_notes, *tokenizer_notes, *data_notes, *load_notes, *client_notes, *adapter_notes, *keep_notes)
    return Translation(
        config,
        (*notes, *breakers.notes(spec)),
        translate_server.secret_headers(spec),
        translate_server.environment(spec),
    )


def to_config(translation: Translation) -> Config:
    """The Config of a run, with the secret headers. The environment is the caller's."""
    server = translation.config["server"]
    headers = server.get("headers", {}) | translation.headers
    return configs.from_mapping(translation.config | {"server": server | {"headers": headers}})


def _refuse(spec: Spec) -> None:
    """Refuse what is not supported and belongs to no other part."""
    refuse(spec)
    breakers.check(spec)


def _divided(spec: Spec, data: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The data, as one traffic class for each LoRA adapter if there are any."""
    shares = translate_load.adapters(spec)
    if not shares:
        return data, []
    classes = [{"name": name, "weight": share, "model": name, "data": data} for name, share in shares.items()]
    return {"type": "mix", "classes": classes}, [f"load.lora_traffic_split: traffic classes {', '.join(shares)}."]


def _sessions(spec: Spec) -> dict[str, Any]:
    """Our section `sessions`."""
    section: dict[str, Any] = {}
    if header := at(spec, "api.session_id_header_key"):
        section["header"] = header
    if header := at(spec, "api.session_token_header_key"):
        section["token_header"] = header
    if translate_data.users_of(spec):
        section["on_failure"] = (
            "continue"  # the requests of a stage belong to the users, whatever became of those before
        )
    if at(spec, "data.type") == "conversation_replay":
        limit = at(spec, "data.conversation_replay", {}).get("max_model_len", _MODEL_LEN)
        section |= {"context": int(limit)} if limit is not None else {}
    return section


def _keeps_text(spec: Spec) -> bool:
    """Whether reports need the texts of requests or responses."""
    own = "report.request_lifecycle"
    fields = ("request", "response", "response_chunks")
    wanted = any(at(spec, f"{own}.per_request_fields.{name}", True) for name in fields)
    return is_exact(spec) or (at(spec, f"{own}.per_request", False) and wanted)
