"""The digest identifies the workload: equal workloads have equal digests, different ones have different digests."""

import json
from pathlib import Path

import small_tokenizers

from inferometer import workload
from inferometer.config.data import Data, Jsonl, Prompts, Random, Synthetic


def test_the_same_workload_has_the_same_digest(tmp_path: Path) -> None:
    """Whatever the path of a file is, and if a chat template does not change the prompts."""
    assert len(workload.digest(Synthetic(), 1)) == 64
    for name in ("here", "there"):
        (tmp_path / name).write_text('{"prompt": "a"}')
    for one, other in (
        (Synthetic(), Synthetic()),
        (Jsonl(path=str(tmp_path / "here")), Jsonl(path=str(tmp_path / "there"))),
        *((kind(chat_template="auto"), kind(chat_template="ignore")) for kind in (Synthetic, Random)),
    ):
        assert workload.digest(one, 1) == workload.digest(other, 1)


def test_any_other_workload_has_another_digest(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"prompt": "a"}\n')
    longer = tmp_path / "b.jsonl"
    longer.write_text('{"prompt": "a"}\n' * 2)
    specs: list[tuple[Data, int]] = [
        *(
            (Random(**settings), seed)
            for settings in ({}, {"of": "ids"}, {"input": 100}, {"output": 1})
            for seed in (0, 1)
        ),
        (Synthetic(), 0),
        (Synthetic(), 1),
        (Synthetic(input=255), 0),
        (Synthetic(output=127), 0),
        (Synthetic(tokenizer=small_tokenizers.save("byte_level", tmp_path)), 0),
        (Prompts(prompts=["a"]), 0),
        (Prompts(prompts=["a"], output=5), 0),
        (Prompts(prompts=["a", "a"]), 0),
        (Prompts(prompts=["b"]), 0),
        (Jsonl(path=str(file)), 0),
        (Jsonl(path=str(file), output=5), 0),
        (Jsonl(path=str(longer)), 0),
    ]
    assert len({workload.digest(spec, seed) for spec, seed in specs}) == len(specs)
    file = tmp_path / "a.jsonl"
    rows = [json.dumps({"prompt": f"number {i}"}) for i in range(400)]
    digests = set()
    for last in ("a", "b"):
        file.write_text("\n".join([*rows, json.dumps({"prompt": last})]))
        digests.add(workload.digest(Jsonl(path=str(file)), 0))
    assert len(digests) == 2
    assert workload.distinct(Synthetic()) is None
    assert workload.distinct(Prompts(prompts=["a", "b"])) == 2
