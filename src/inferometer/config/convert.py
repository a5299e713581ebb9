"""From plain dicts and lists to a Config: durations, windows, and what YAML makes of keys."""

from typing import Any

import msgspec

from inferometer.config.fields import RampUp, Seconds, Window
from inferometer.config.schema import Config
from inferometer.units import parse_seconds


def convert(tree: dict[str, Any]) -> Config:
    """The Config; raises msgspec.ValidationError if the tree does not fit the schema."""
    return msgspec.convert(tree, Config, dec_hook=quantity)


def copied(tree: Any) -> Any:
    """A deep copy with text as keys. YAML 1.1 reads the keys `on` and `off` as true and false."""
    if isinstance(tree, dict):
        return {"on" if key is True else "off" if key is False else str(key): copied(tree[key]) for key in tree}
    return [copied(value) for value in tree] if isinstance(tree, list) else tree


def quantity(kind: type, value: object) -> object:
    """Read a duration or a window, for msgspec."""
    if kind is Seconds:
        return Seconds(parse_seconds(value))
    if kind is RampUp:
        if value != "auto":
            try:
                parse_seconds(value)
            except ValueError:
                raise ValueError(f"expected a duration such as 500ms, or auto, got {value!r}") from None
        return RampUp(value)
    if kind is Window:
        text = str(value)
        if text != "auto" and not text.isdecimal():
            try:
                parse_seconds(value)
            except ValueError:
                raise ValueError(
                    f"expected a count of requests, a duration such as 5s, or auto, got {value!r}"
                ) from None
        return Window(text)
    raise NotImplementedError(kind)
