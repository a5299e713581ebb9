"""The digest names the workload: the same for the same, another for anything else."""

import json
from pathlib import Path

import made

from inferometer import workload
from inferometer.config.schema import Data, Jsonl, Prompts, Synthetic


def test_the_same_workload_has_the_same_digest() -> None:
    assert workload.digest(Synthetic(), 1) == workload.digest(Synthetic(), 1)
    assert len(workload.digest(Synthetic(), 1)) == 64


def test_anything_else_has_another(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"prompt": "a"}\n')
    longer = tmp_path / "b.jsonl"
    longer.write_text('{"prompt": "a"}\n' * 2)
    specs: list[tuple[Data, int]] = [
        (Synthetic(), 0),
        (Synthetic(), 1),
        (Synthetic(input=255), 0),
        (Synthetic(output=127), 0),
        (Synthetic(tokenizer=made.save("byte_level", tmp_path)), 0),
        (Prompts(prompts=["a"]), 0),
        (Prompts(prompts=["a"], output=5), 0),
        (Prompts(prompts=["a", "a"]), 0),
        (Prompts(prompts=["b"]), 0),
        (Jsonl(path=str(file)), 0),
        (Jsonl(path=str(file), output=5), 0),
        (Jsonl(path=str(longer)), 0),
    ]
    assert len({workload.digest(spec, seed) for spec, seed in specs}) == len(specs)


def test_a_line_beyond_the_sample_counts_too(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    rows = [json.dumps({"prompt": f"number {i}"}) for i in range(400)]
    digests = set()
    for last in ("a", "b"):
        file.write_text("\n".join([*rows, json.dumps({"prompt": last})]))
        digests.add(workload.digest(Jsonl(path=str(file)), 0))
    assert len(digests) == 2


def test_where_a_file_lies_does_not_matter(tmp_path: Path) -> None:
    digests = set()
    for name in ("here", "there"):
        (tmp_path / name).write_text('{"prompt": "a"}')
        digests.add(workload.digest(Jsonl(path=str(tmp_path / name)), 0))
    assert len(digests) == 1


def test_distinct_requests() -> None:
    assert workload.distinct(Synthetic()) is None
    assert workload.distinct(Prompts(prompts=["a", "b"])) == 2
