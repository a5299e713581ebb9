"""Stored comparisons of engines: campaign.json, and the runs beside it."""

import contextlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from inferometer.analysis.agreement import Encode
from inferometer.analysis.engine_results import EngineResults, summarise_campaign
from inferometer.analysis.summary import Summary
from inferometer.campaign import CampaignRecord
from inferometer.conduct.saving import Changes, open_run
from inferometer.errors import UserError
from inferometer.records import Run
from inferometer.store.folder import CAMPAIGN
from inferometer.workload import tokenizer


def read_record(folder: Path) -> CampaignRecord:
    """Read campaign.json. Raises UserError when it cannot be read."""
    try:
        return msgspec.json.decode((folder / CAMPAIGN).read_bytes(), type=CampaignRecord)
    except (OSError, msgspec.MsgspecError) as error:
        raise UserError(
            f"{folder / CAMPAIGN}: cannot be read: {error}",
            "give the folder of a comparison of engines; its runs can be reported one by one",
        ) from None


def open_campaign(folder: Path, slos: Sequence[str] | None = None, changes: Changes | None = None) -> EngineResults:
    """Open a stored comparison; `slos` are objectives to judge it by instead of its own, and `changes` other settings of the report."""
    record = read_record(folder)
    names = dict.fromkeys(level.run for engine in record.engines for level in engine.levels if level.run)
    runs: dict[str, tuple[Run, Summary]] = {}
    for name in names:
        if (folder / name).is_dir():
            with contextlib.suppress(UserError):  # a damaged run: its level says that it cannot be read
                runs[name] = open_run(str(folder / name), slos, changes)
    real = folder.resolve() if folder.is_symlink() else folder
    return summarise_campaign(record, runs, encoder_of(record), str(real))


def encoder_of(record: CampaignRecord) -> Encode | None:
    """The model's tokenizer, if outputs have to be compared by it: some engine reports no token ids, and the model is a folder of this
    machine, or the data names a tokenizer."""
    if all(output.ids is not None for engine in record.engines for output in engine.outputs):
        return None
    named = record.campaign.get("data", {}).get("tokenizer")
    is_local = Path(record.model.name, "tokenizer.json").is_file()
    name = named or (record.model.name if is_local else None)
    if not isinstance(name, str):
        return None
    try:
        loaded = tokenizer.load(name)
    except UserError:  # it may have been moved since: words are compared, and the report says so
        return None
    return loaded.encode
