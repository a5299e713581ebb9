"""Parses YAML as config files use it."""

from typing import Any

import yaml


class _Loader(yaml.SafeLoader):
    """YAML 1.1 reads 1:8:2 as a base-60 number; here it is text, as in YAML 1.2."""

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> str:
        tag: str = super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]
        is_base_60 = tag.endswith((":int", ":float")) and ":" in value
        return "tag:yaml.org,2002:str" if is_base_60 else tag


def parse(text: str) -> Any:
    """Parse one document into plain dicts, lists and scalars. Raises ValueError with the position and the reason, or RecursionError."""
    try:
        return yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        reason = str(getattr(error, "problem", None) or error).partition("\n")[0]
        raise ValueError(f"{where} is not YAML: {reason}") from None
