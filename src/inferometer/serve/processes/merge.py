"""Adds up what several processes report, so that they are one server to the outside."""

from collections.abc import Sequence
from typing import Any

from inferometer.serve.kserve.messages import ModelStatisticsResponse

_OF_THE_SERVER = ("nv_cpu_", "process_start_time_seconds", "inferometer_serve_info")
"""Metrics that are the same for all processes: those of the first one count."""
_MEANS = ("vllm:kv_cache_usage_perc",)


def metrics(pages: Sequence[bytes]) -> bytes:
    """Return one page in Prometheus' text format, with the sums of all samples."""
    families: dict[str, dict[str, float]] = {}
    heads: dict[str, list[str]] = {}
    for page in pages:
        family = ""
        for line in page.decode().splitlines():
            if line.startswith("#"):
                family = line.split(" ", 3)[2]
                head = heads.setdefault(family, [])
                if line not in head:
                    head.append(line)
            elif line:
                sample, _, value = line.rpartition(" ")
                samples = families.setdefault(family, {})
                number = float(value) if "." in value or "e" in value else int(value)
                if sample not in samples or not sample.startswith(_OF_THE_SERVER):
                    samples[sample] = samples.get(sample, 0) + (
                        number / len(pages) if sample.startswith(_MEANS) else number
                    )
    lines = [
        line
        for family, head in heads.items()
        for line in (*head, *(f"{sample} {value}" for sample, value in families.get(family, {}).items()))
    ]
    return ("\n".join(lines) + "\n").encode()


def statistics(parts: Sequence[bytes]) -> Any:
    """Return one ModelStatisticsResponse with the sums per model, in the order of their names."""
    models: dict[tuple[str, str], Any] = {}
    for part in parts:
        for model in ModelStatisticsResponse.FromString(part).model_stats:
            key = (model.name, model.version)
            if key in models:
                _add(models[key], model)
            else:
                models[key] = model
    return ModelStatisticsResponse(model_stats=[models[key] for key in sorted(models)])


def _add(total: Any, more: Any) -> None:
    for field, value in more.ListFields():
        if field.name == "batch_stats":
            known = {batch.batch_size: batch for batch in total.batch_stats}
            for batch in value:
                _add(known.get(batch.batch_size) or total.batch_stats.add(batch_size=batch.batch_size), batch)
        elif field.message_type is not None:
            _add(getattr(total, field.name), value)
        elif field.name == "last_inference":
            total.last_inference = max(total.last_inference, value)
        elif field.name not in ("name", "version", "batch_size"):
            setattr(total, field.name, getattr(total, field.name) + value)
