"""Inferometer: the instrument that says how fast a model server really is."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inferometer.dummies import dummy_inputs as dummy_inputs

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import what the package offers to Python code when it is first used, so that importing the package costs nothing."""
    if name == "dummy_inputs":
        from inferometer.dummies import dummy_inputs  # noqa: PLC0415

        return dummy_inputs
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
