"""Requests for examples/data/python.yaml: a function that yields prompts, lists of messages, or dicts as in a JSONL file."""

import random
from collections.abc import Iterator

RIVERS = ("the Danube", "the Rhine", "the Loire", "the Vistula", "the Po")


def requests(seed: int = 0, count: int = 100) -> Iterator[dict[str, object]]:
    """Yield the same requests whenever it is called with the same arguments: each process of a run calls it."""
    chance = random.Random(seed)
    for number in range(count):
        first, second = chance.sample(RIVERS, 2)
        yield {"prompt": f"{number}: which is longer, {first} or {second}?", "output": chance.randint(8, 24)}
