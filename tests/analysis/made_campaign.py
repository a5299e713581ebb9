"""A made-up comparison of engines: synthetic runs of known speed, beside a record of what each engine did."""

from functools import lru_cache
from pathlib import Path

import msgspec
import numpy as np
import synthetic_run as made

from inferometer.analysis.engine_results import EngineResults, summarise_campaign
from inferometer.analysis.summary import Summary, summarise
from inferometer.campaign import (
    CampaignRecord,
    DeviceFacts,
    EncoderLevel,
    EngineRecord,
    LevelRecord,
    ModelFacts,
    Output,
    StartUp,
)
from inferometer.records import MISSING, Run, StagePlan

SLO = "ttft.p95 < 200ms"
LEVELS = (1, 4, 16)
MODEL = ModelFacts(
    name="models/tiny", architecture="LlamaForCausalLM", parameters=1_235_814_400, active_parameters=1_235_814_400,
    bytes=2_471_628_800, dtype="bfloat16", layers=16, hidden=2048, heads=32, kv_heads=8, head_size=64, vocabulary=128_256,
    is_tied=True, context=8192,
)  # fmt: skip
DEVICE = DeviceFacts(name="NVIDIA H100 80GB HBM3", tflops=989.0, bandwidth=3350.0, source="devices.py")
WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog"]
AGREES = tuple(Output(" ".join(WORDS[start:])) for start in range(4))
NONSENSE = tuple(Output("la " * 8) for _ in range(4))


@lru_cache(maxsize=64)
def run_of(
    level: int, slower: float = 1.0, most: int = 64, seed: int = 0, is_streamed: bool = True
) -> tuple[Run, Summary]:
    """A closed loop with `level` users. With more users than `most`, each waits: responses start later in proportion."""
    count = 240
    rows, chunks = made.closed_rows(count, level, seed=seed)
    waiting = max(level / most, 1.0)
    wait = np.int64((waiting - 1) * slower * 140 * made.MS)
    for column in ("first_byte", "first_token", "first_content", "last_token", "done"):
        rows[column] = rows["sent"] + wait + ((rows[column] - rows["sent"]) * slower).astype(np.int64)
    starts = np.repeat(rows["sent"], rows["chunk_count"])
    arrival = starts + wait + ((chunks.arrival - starts) * slower).astype(np.int64)
    free = np.zeros(level, np.int64)  # each user sends the next request when its response is complete
    for number in range(count):
        user = number % level
        move = free[user] - rows["intended"][number]
        for column in ("intended", "sent", "first_byte", "first_token", "first_content", "last_token", "done"):
            rows[column][number] += move
        own = slice(rows["chunk_start"][number], rows["chunk_start"][number] + rows["chunk_count"][number])
        arrival[own] += move
        free[user] = rows["done"][number]
    if not is_streamed:
        for column in ("first_token", "last_token", "first_content"):
            rows[column] = MISSING
        rows["chunk_count"], rows["first_tokens"], rows["streamed_tokens"] = 0, -1, -1
    plan = (StagePlan(type="closed", open=False, name=f"concurrency {level}", concurrency=level, requests=count),)
    config = made.manifest().config | {"slo": [SLO], "cost": {"price_per_hour": 3.6}}
    kept = msgspec.structs.replace(chunks, arrival=arrival) if is_streamed else None
    run = made.run(rows, kept, plan=plan, config=config, seeds={"seed": seed}, sampled=made.samples(30.0))
    return run, summarise(run)


class Maker:
    """Puts engines and their runs together."""

    def __init__(self, rounds: int = 2) -> None:
        self.engines: list[EngineRecord] = []
        self.runs: dict[str, tuple[Run, Summary]] = {}
        self.rounds = rounds

    def measured(
        self,
        name: str,
        slower: float = 1.0,
        most: int = 64,
        levels: tuple[int, ...] = LEVELS,
        by: str = "concurrency",
        is_streamed: bool = True,
        **about: object,
    ) -> "Maker":
        records = []
        for number in range(self.rounds):
            for level in levels:
                run, summary = run_of(level, slower * (1 + 0.01 * number), most, number, is_streamed)
                folder = f"{name}-{level}-{number}".replace(" ", "-")
                self.runs[folder] = (msgspec.structs.replace(run, folder=Path("/campaign") / folder), summary)
                padding = 0.12 if not is_streamed and level > 1 else None
                records.append(
                    LevelRecord(by=by, level=level, repeat=number, run=folder, padding=padding, cache="salted")  # type: ignore[arg-type]
                )
        known: dict[str, object] = {"type": name.partition(" ")[0], "mode": "serve", "status": "ok", "outputs": AGREES}
        self.engines.append(EngineRecord(name=name, levels=tuple(records), **(known | about)))  # type: ignore[arg-type]
        return self

    def failed(self, name: str) -> "Maker":
        self.engines.append(
            EngineRecord(
                name=name, type=name, mode="serve", status="failed", reason="not ready", log=f"{name}.log",
                message="it did not become ready within 600 s; see its log", log_tail=("loading weights", "RuntimeError: <boom>"),
            )
        )  # fmt: skip
        return self

    def record(self, **about: object) -> CampaignRecord:
        known: dict[str, object] = {
            "inferometer": "0.1.0",
            "started": "2026-11-17T04:00:00+00:00",
            "digest": "sha256:0",
            "campaign": {"model": "models/tiny", "slo": [SLO]},
            "model": MODEL,
            "device": DEVICE,
            "engines": tuple(self.engines),
            "sample": ("one", "two", "three", "four"),
        }
        return CampaignRecord(**(known | about))  # type: ignore[arg-type]

    def results(self, **about: object) -> EngineResults:
        return summarise_campaign(self.record(**about), self.runs)


def generators() -> Maker:
    """Five engines: two fast ones, one at a time, static batches without token times, one that answers nonsense, one that failed."""
    return (
        Maker()
        .measured("vllm", facts={"dtype": "bfloat16", "prefix cache": "on"}, version="0.11.0", starts=(
            StartUp(is_cold=True, dropped_cache=True, phases={"imported": 6.1, "weights loaded": 11.0, "graphs captured": 42.0}, ready=43.1, first_token=43.4),
            StartUp(is_cold=False, phases={"imported": 4.1, "weights loaded": 6.0, "graphs captured": 18.0}, ready=19.1, first_token=19.3),
        ))
        .measured("transformers serial", 1.4, levels=(1,), by="batch", type="transformers", mode="serial", facts={"dtype": "bfloat16", "prefix cache": "off"},
                  starts=(StartUp(is_cold=True, phases={"imported": 5.0}, ready=9.5, first_token=11.3),))
        .measured("transformers batched", 1.5, 4, by="batch", type="transformers", mode="batched", is_streamed=False, facts={"dtype": "float32"})
        .measured("llamacpp", 0.8, 2, outputs=NONSENSE)
        .failed("sglang")
    )  # fmt: skip


def encoders() -> CampaignRecord:
    """Three engines of an encoder at two batch sizes and lengths; the outputs of one are wrong."""
    rng = np.random.default_rng(3)

    def calls(factor: float, difference: float) -> tuple[EncoderLevel, ...]:
        return tuple(
            EncoderLevel(
                batch=batch, length=length, repeat=0, difference=difference, memory=(400 + 10 * batch) << 20,
                energy=0.02 * batch * length * factor, seconds=tuple((factor * (1e-3 + 2e-6 * batch * length) * rng.normal(1, 0.02, 60)).tolist()),
            )
            for batch in (1, 8) for length in (32, 128)
        )  # fmt: skip

    engines = (
        EngineRecord(name="torch float32", type="torch", mode="encoder", status="ok", encoder=calls(1.0, 0.0)),
        EngineRecord(name="torch compiled", type="torch", mode="encoder", status="ok", encoder=calls(0.6, 0.001)),
        EngineRecord(name="onnxruntime", type="onnxruntime", mode="encoder", status="ok", encoder=calls(0.3, 0.4)),
    )
    return Maker().record(engines=engines, campaign={"model": "models/bert", "encoder": {"batch": [1, 8]}}, sample=())
