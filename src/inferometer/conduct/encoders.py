"""The comparison of engines for an encoder: each is loaded, measured at every batch size and length, and ended; then outputs are compared.

The reference is the first engine with torch and float32; if there is none, the first that has outputs.
"""

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from inferometer.analysis.energy import longest_power_gap, trapezoid
from inferometer.analysis.output_comparison import compare_outputs
from inferometer.campaign import EncoderLevel, EngineRecord, StartUp
from inferometer.conduct.campaign_book import CampaignBook
from inferometer.conduct.observers import resource_observers
from inferometer.config.engines import Campaign, Encoder, EngineSpec
from inferometer.config.observe import Observe
from inferometer.engines.inprocess.library import Library, start_library
from inferometer.engines.inprocess.messages import Encoded
from inferometer.engines.launching import EngineError
from inferometer.observe.observer import Observers
from inferometer.series import TimeSeries

if TYPE_CHECKING:
    from inferometer.report.engines_view import CampaignView

OUTPUTS = "outputs"
"""Folder of the encoders' outputs, in the folder of the campaign."""
_FEWEST_SAMPLES = 3
"""Samples of power within the calls that their energy needs: between two, it is not known."""
_PER_SIZE = 600.0
"""Seconds that all calls of one size may take, besides those that `startup.timeout` allows for compiling."""


def pending_sizes(encoder: Encoder, known: EngineRecord, number: int) -> list[tuple[int, int]]:
    """The batch sizes and lengths of this round that are not measured; none if the engine has failed."""
    if known.status == "failed":
        return []
    done = {(each.batch, each.length) for each in known.encoder if each.repeat == number}
    return [size for size in itertools.product(encoder.batch, encoder.length) if size not in done]


def measure_encoder(
    campaign: Campaign,
    spec: EngineSpec,
    number: int,
    sizes: Sequence[tuple[int, int]],
    book: CampaignBook,
    view: "CampaignView",
) -> None:
    """Measure the sizes of one round with one engine, and record each. Raises EngineError when the engine fails, or no size can be
    measured; one for which there is too little memory does not keep the others from being measured."""
    encoder, record = campaign.encoder, book[spec.name]
    assert encoder is not None
    log = book.folder / record.log
    library = start_library(
        spec,
        spec.model or campaign.model,
        log,
        log.with_suffix(""),
        float(campaign.startup.timeout),
        max_batch=max(encoder.batch),
        task=encoder.task,
        config_of=campaign.model,
    )
    try:
        book.add_start(spec.name, StartUp(is_cold=not record.starts, phases=library.phases, ready=library.ready_at))
        book.change(spec.name, facts=library.facts, version=library.versions.get(spec.type, ""))
        for size in sizes:
            level = _level(campaign, encoder, library, book.index(spec.name), (*size, number), book.folder)
            book.change(spec.name, encoder=(*book[spec.name].encoder, level))
            view.line(f"{spec.name}: {in_words(level)}")
            if not library.is_running:
                raise EngineError(level.error, reason="died", log_tail=library.log_tail())
    finally:
        library.close()
    if not any(level.seconds for level in book[spec.name].encoder):
        raise EngineError(level.error)
    book.change(spec.name, status="ok")


def _level(
    campaign: Campaign, encoder: Encoder, library: Library, index: int, size: tuple[int, int, int], folder: Path
) -> EncoderLevel:
    batch, length, repeat = size
    (folder / OUTPUTS).mkdir(parents=True, exist_ok=True)
    observe = msgspec.convert(campaign.observe, Observe, dec_hook=lambda kind, value: kind(value))
    observe = msgspec.structs.replace(observe, host=False, processes=[])
    try:
        with Observers(resource_observers(observe)) as watching:
            watching.start()
            encoded = library.encode(
                batch,
                length,
                measurements=encoder.measurements,
                warmup=encoder.warmup,
                outputs=output_file(folder, index, batch, length),
                seed=campaign.seed,
                timeout=float(campaign.startup.timeout) + _PER_SIZE,
            )
            series = watching.end()
    except EngineError as error:
        return EncoderLevel(batch=batch, length=length, repeat=repeat, error=error.what)
    return EncoderLevel(
        batch=batch,
        length=length,
        repeat=repeat,
        seconds=encoded.seconds,
        energy=energy_of(series, encoded, float(observe.interval)),
        memory=encoded.memory,
    )


def energy_of(series: Sequence[TimeSeries], encoded: Encoded, interval: float) -> float | None:
    """Joules of all GPUs over the measured calls; None: there is no GPU, or the calls took too short a time to tell."""
    powers = [each for each in series if each.name == "gpu_power"]
    total = 0.0
    for power in powers:
        within = (power.at > encoded.began) & (power.at < encoded.ended)
        if np.count_nonzero(within) < _FEWEST_SAMPLES:
            return None
        joules = trapezoid(power.at, power.value, encoded.began, encoded.ended, longest_power_gap(interval))
        if isinstance(joules, str):
            return None
        total += joules
    return total if powers else None


def output_file(folder: Path, engine: int, batch: int, length: int) -> Path:
    return folder / OUTPUTS / f"engine-{engine + 1}-batch-{batch}-length-{length}.npy"


# --- comparing outputs ---------------------------------------------------------------------------------------------------


def reference_of(records: Sequence[EngineRecord]) -> int | None:
    """Index of the engine that the others are compared with; None if none has outputs."""
    able = [index for index, record in enumerate(records) if any(level.seconds for level in record.encoder)]
    exact = [
        index for index in able if records[index].type == "torch" and records[index].facts.get("dtype") == "float32"
    ]
    return next(iter([*exact, *able]), None)


def compared(records: Sequence[EngineRecord], folder: Path) -> list[EngineRecord]:
    """The records with the difference of each engine's outputs from the reference's, where both have some."""
    reference = reference_of(records)
    if reference is None:
        return list(records)
    sizes = {(level.batch, level.length) for level in records[reference].encoder if level.seconds}
    return [
        msgspec.structs.replace(
            record,
            encoder=tuple(_compared(level, sizes, folder, reference, index) for level in record.encoder),
        )
        for index, record in enumerate(records)
    ]


def _compared(
    level: EncoderLevel, sizes: set[tuple[int, int]], folder: Path, reference: int, index: int
) -> EncoderLevel:
    size = (level.batch, level.length)
    if not level.seconds or size not in sizes:
        return level
    expected, got = (np.load(output_file(folder, each, *size)) for each in (reference, index))
    if expected.shape != got.shape:
        words = f"its outputs have the shape {list(got.shape)}, the reference's {list(expected.shape)}"
        return msgspec.structs.replace(level, difference=math.inf, error=words)
    return msgspec.structs.replace(level, difference=compare_outputs(expected, got).relative)


def in_words(level: EncoderLevel) -> str:
    """One line about a size: its mean duration, or why there is none."""
    size = f"batch {level.batch}, length {level.length}"
    if not level.seconds:
        return f"{size}: {level.error}"
    return f"{size}: {math.fsum(level.seconds) / len(level.seconds) * 1e3:.3g} ms"
