"""Shows a workload without sending it: `inferometer data`.

spec.py      the config, whose server may be missing
overview.py  the figures: lengths, duplicates, shared prefixes, arrivals, samples
prefixes.py  which part of the prompts a prefix cache could share
jsonl.py     the workload as a file that `data: {type: jsonl}` reads
show.py      the figures as text
"""

from inferometer.preview.jsonl import line
from inferometer.preview.overview import Overview, survey
from inferometer.preview.show import render
from inferometer.preview.spec import read

__all__ = ["Overview", "line", "read", "render", "survey"]
