"""Parses YAML as config files use it."""

from itertools import chain
from typing import Any

import yaml


class _Loader(yaml.SafeLoader):
    """YAML 1.1 reads 1:8:2 as a base-60 number; here it is text, as in YAML 1.2."""

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> str:
        tag: str = super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]
        is_base_60 = tag.endswith((":int", ":float")) and ":" in value
        return "tag:yaml.org,2002:str" if is_base_60 else tag


_MOST_VALUES = 1_000_000
"""Aliases of aliases can make any number of a few lines."""


def _size(node: yaml.Node, known: dict[yaml.Node, int]) -> int:
    """The number of values, with those that aliases repeat."""
    if node not in known and not isinstance(node, yaml.ScalarNode):
        parts = chain.from_iterable(node.value) if isinstance(node, yaml.MappingNode) else node.value
        known[node] = 1 + sum(_size(part, known) for part in parts)
    return known.get(node, 1)


def parse(text: str) -> Any:
    """Parse one document into plain dicts, lists and scalars. Raises ValueError with the position and the reason, or RecursionError."""
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is not None and _size(node, {}) > _MOST_VALUES:
            raise ValueError(f"its aliases (*) repeat more than {_MOST_VALUES:,} values")
        return None if node is None else loader.construct_document(node)
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        reason = str(getattr(error, "problem", None) or error).partition("\n")[0]
        raise ValueError(f"{where} is not YAML: {reason}") from None
