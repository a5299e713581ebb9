"""summary.json: the structs of the summary, in their order.

JSON has no infinite numbers. A percentile that is infinite, because failed requests count as infinitely slow, is the string
"inf"; null means that there is no number. NaN, which would be a number that is not known, is null too.
"""

import math
from typing import Any

import msgspec


def encode(summary: msgspec.Struct) -> bytes:
    """Encode a summary, or another struct of figures; equal ones give equal bytes."""
    return msgspec.json.format(msgspec.json.encode(with_words(msgspec.to_builtins(summary))), indent=2) + b"\n"


def with_words(tree: Any) -> Any:
    """The tree with "inf" and "-inf" instead of infinite numbers."""
    if isinstance(tree, dict):
        return {key: with_words(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [with_words(value) for value in tree]
    return str(tree) if isinstance(tree, float) and math.isinf(tree) else tree
