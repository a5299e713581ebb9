"""The record of a comparison of engines while it is measured: campaign.json, written after every part."""

import hashlib
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from inferometer import __version__, manifest, workload
from inferometer.campaign import CampaignRecord, DeviceFacts, EngineRecord, LevelRecord, StartUp
from inferometer.conduct.campaign_reading import read_record
from inferometer.conduct.engine_server import prompts_of, sample_row
from inferometer.config.engines import Campaign, EngineSpec, Level, level_config, levels_of
from inferometer.config.secret import is_secret, without_password
from inferometer.engines import devices, model_files
from inferometer.engines.launching import EngineError
from inferometer.errors import UserError
from inferometer.observe.gpu import gpu_names
from inferometer.printable import REMOVED
from inferometer.store.folder import CAMPAIGN, atomic_file

SAMPLE = "sample.jsonl"
"""The prompts that every engine completes, in the folder of the campaign."""
_ANY_URL = "http://127.0.0.1:1"
_SECRET_FLAG = re.compile(r"(\S*(?:key|token|secret|password)\S*?[= ]+)\S+", re.IGNORECASE)
"""A flag or a variable of a command line whose value may be a secret: `--api-key VALUE`, `HF_TOKEN=VALUE`."""


class CampaignBook:
    """campaign.json: what is finished, written after every part."""

    def __init__(self, folder: Path, campaign: Campaign, specs: Sequence[EngineSpec], is_resumed: bool) -> None:
        self.folder, self._campaign = folder, campaign
        digest = _digest(campaign)
        if is_resumed:
            self.record = read_record(folder)
            if self.record.digest != digest:
                raise UserError(
                    f"{folder} was measured with another file", "resume it with the same file, or start a new campaign"
                )
            self._forgive()
            return
        engines = tuple(_fresh(spec, number) for number, spec in enumerate(specs, 1))
        rows = _sample(campaign) if campaign.encoder is None else []
        if rows:
            (folder / SAMPLE).write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
        facts = model_files.model_facts(campaign.model)
        self.record = CampaignRecord(
            inferometer=__version__,
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            digest=digest,
            campaign=_redacted(msgspec.to_builtins(campaign, enc_hook=float)),
            model=facts,
            device=_device(campaign, specs, facts.dtype),
            sample=prompts_of(rows),
            engines=engines,
        )
        self._write()

    def __getitem__(self, name: str) -> EngineRecord:
        return self.record.engines[self.index(name)]

    def pending(self, spec: EngineSpec, number: int) -> list[Level]:
        """The levels of this round that are not measured; none if the engine has failed."""
        known = self[spec.name]
        if known.status == "failed":
            return []
        done = {(each.by, each.level) for each in known.levels if each.repeat == number and not each.is_profiled}
        return [level for level in levels_of(self._campaign, spec) if (level.by, level.value) not in done]

    def index(self, name: str) -> int:
        """The place of an engine in the campaign."""
        return next(index for index, each in enumerate(self.record.engines) if each.name == name)

    def change(self, name: str, **changes: Any) -> None:
        self.replace(msgspec.structs.replace(self[name], **changes))

    def replace(self, record: EngineRecord) -> None:
        engines = tuple(record if each.name == record.name else each for each in self.record.engines)
        self.record = msgspec.structs.replace(self.record, engines=engines)
        self._write()

    def add_start(self, name: str, startup: StartUp) -> None:
        self.change(name, starts=(*self[name].starts, startup))

    def add_level(self, name: str, level: LevelRecord) -> None:
        self.change(name, levels=(*self[name].levels, level))

    def fail(self, name: str, error: EngineError) -> None:
        message = error.line + (f" (next: {error.next_step})" if error.next_step else "")
        self.change(name, status="failed", reason=error.reason, message=message, log_tail=error.log_tail)

    def write(self, interrupted: bool) -> None:
        self.record = msgspec.structs.replace(self.record, interrupted=interrupted)
        self._write()

    def _forgive(self) -> None:
        """A resumed campaign tries engines that failed again."""
        for each in self.record.engines:
            if each.status == "failed":
                levels = tuple(level for level in each.levels if level.run and not level.error)
                sizes = tuple(size for size in each.encoder if size.seconds)
                again: dict[str, Any] = {"status": "pending", "reason": "", "message": "", "log_tail": ()}
                self.change(each.name, **again, levels=levels, encoder=sizes)

    def _write(self) -> None:
        with atomic_file(self.folder / CAMPAIGN) as partial:
            partial.write_bytes(msgspec.json.format(msgspec.json.encode(self.record), indent=1) + b"\n")


def _fresh(spec: EngineSpec, number: int) -> EngineRecord:
    settings = msgspec.to_builtins(spec)
    settings = {name: value for name, value in settings.items() if value not in ("", None, {}, False)}
    settings["env"] = dict.fromkeys(spec.env, REMOVED)
    mode = spec.mode or "serve"
    slug = "".join(letter if letter.isalnum() else "-" for letter in spec.name)[:60]
    return EngineRecord(
        name=spec.name, type=spec.type, mode=mode, settings=_redacted(settings), log=f"{number:02}-{slug}.log"
    )


def _sample(campaign: Campaign) -> list[dict[str, Any]]:
    """The prompts that every engine completes; empty if the workload has no texts."""
    if not campaign.agreement.samples:
        return []
    config = level_config(campaign, Level("concurrency", 1), {"url": _ANY_URL}, "sample", 0)
    if workload.uses_tokenizer(config.data, "server"):
        return []
    requests = workload.build(config.data, config.seed, range(campaign.agreement.samples))
    rows = [sample_row(request, campaign.agreement.tokens) for request in requests]
    return [row for row in rows if row is not None]


def _device(campaign: Campaign, specs: Sequence[EngineSpec], stored: str) -> DeviceFacts:
    """The device that the engines run on: a GPU if there is one and no engine is told to use the CPU, else the processor.

    The peak that counts is that of the engines' data type if all have the same one, else that of the stored weights.
    """
    given = {spec.dtype for spec in specs}
    dtype = (given.pop() or stored) if len(given) == 1 else stored
    names = [] if any(spec.device == "cpu" for spec in specs) else gpu_names()
    name = names[0] if names else str(manifest.host().get("cpu", ""))
    gpus = campaign.cost.get("gpus")
    return devices.device_facts(name, gpus if isinstance(gpus, int) else 1, dtype, campaign.device)


def _digest(campaign: Campaign) -> str:
    """A hash of what is measured: without where it is stored, and what only the report depends on."""
    tree = msgspec.to_builtins(campaign, enc_hook=float)
    for name in ("output", "cost", "slo", "device"):
        del tree[name]
    return hashlib.sha256(msgspec.json.encode(tree, order="sorted")).hexdigest()[:16]


def _redacted(tree: Any, name: str = "") -> Any:
    """The tree without values that could be secrets: of headers and environment variables, of secret keys, in URLs."""
    if isinstance(tree, dict):
        if name in ("headers", "env"):
            return dict.fromkeys(tree, REMOVED)
        return {key: REMOVED if is_secret(key) and value else _redacted(value, key) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_redacted(value) for value in tree]
    if name == "command" and isinstance(tree, str):
        return _SECRET_FLAG.sub(rf"\1{REMOVED}", tree)
    return without_password(tree) if name == "url" and isinstance(tree, str) else tree
