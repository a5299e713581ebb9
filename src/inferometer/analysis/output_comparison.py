"""`inferometer.compare_outputs`: whether two outputs of a model agree, and where they differ most.

Outputs may be numpy arrays, PyTorch tensors on any device, numbers, and lists, tuples and mappings of those, such as the outputs of
Hugging Face models.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.errors import UserError


class OutputDifference(msgspec.Struct, frozen=True, kw_only=True):
    """How far an output is from a reference. It is true, as in `assert`, if they agree within the tolerance."""

    agrees: bool
    largest: float
    """Largest absolute difference of two values."""
    relative: float
    """The same, relative to the largest magnitude of the reference's array that it is in."""
    where: str
    """Where the relative difference is largest: `logits[0, 3]`; empty if nothing differs."""
    expected: float
    """The reference's value there."""
    got: float
    mean: float
    """Mean absolute difference of all values."""
    tolerance: float

    def __bool__(self) -> bool:
        return self.agrees


def compare_outputs(reference: Any, output: Any, tolerance: float = 0.02) -> OutputDifference:
    """Compare an output with a reference: they agree if no value differs by more than `tolerance` times the largest magnitude of its array.

    NaN agrees only with NaN, and an infinity with the same one. Raises Error when the two do not have the same parts and shapes.
    """
    worst = (-1.0, 0.0, "", 0.0, 0.0)
    largest, total, count = 0.0, 0.0, 0
    others = dict(_arrays(output))
    ours = dict(_arrays(reference))
    for path in [*ours, *others]:
        if path not in others or path not in ours:
            missing = "output" if path not in others else "reference"
            raise UserError(
                f"compare_outputs: the {missing} has no {path or 'value'}", "compare outputs of the same model"
            )
    for path, expected in ours.items():
        got = others[path]
        if expected.shape != got.shape:
            where = f" of {path}" if path else ""
            raise UserError(
                f"compare_outputs: the shapes{where} differ: {list(expected.shape)} and {list(got.shape)}",
                "compare outputs for the same input",
            )
        if not expected.size:
            continue
        difference = _differences(expected, got)
        index = int(difference.argmax())
        finite = expected[np.isfinite(expected)]
        scale = float(np.abs(finite).max()) if finite.size else 0.0
        most = float(difference.flat[index])
        relative = most / scale if scale else (math.inf if most else 0.0)
        largest, total, count = max(largest, most), total + float(difference.sum()), count + difference.size
        if relative > worst[0]:
            place = _place(path, np.unravel_index(index, expected.shape)) if most else ""
            worst = (relative, most, place, float(expected.flat[index]), float(got.flat[index]))
    relative = max(worst[0], 0.0)
    return OutputDifference(
        agrees=relative <= tolerance,
        largest=largest,
        relative=relative,
        where=worst[2],
        expected=worst[3],
        got=worst[4],
        mean=total / count if count else 0.0,
        tolerance=tolerance,
    )


def _differences(expected: NDArray[np.float64], got: NDArray[np.float64]) -> NDArray[np.float64]:
    """Absolute differences; values that are not finite differ by 0 or by infinity."""
    same = (expected == got) | (np.isnan(expected) & np.isnan(got))
    with np.errstate(invalid="ignore"):
        found = np.abs(expected - got)
    return np.asarray(np.where(same, 0.0, np.where(np.isfinite(found), found, np.inf)))


def _arrays(output: Any, path: str = "") -> Iterator[tuple[str, NDArray[np.float64]]]:
    """The arrays of an output, each with where it is. None, which optional outputs are, is left out."""
    if output is None:
        return
    if isinstance(output, Mapping):
        for key, value in output.items():
            yield from _arrays(value, f"{path}.{key}" if path else str(key))
    elif isinstance(output, Sequence) and not isinstance(output, str | bytes) and not _is_flat(output):
        for index, value in enumerate(output):
            yield from _arrays(value, f"{path}[{index}]")
    else:
        yield path, _array(output, path)


def _is_flat(values: Sequence[Any]) -> bool:
    return bool(values) and all(isinstance(value, int | float) for value in values)


def _array(value: Any, path: str) -> NDArray[np.float64]:
    if hasattr(value, "detach"):  # a PyTorch tensor; numpy has no bfloat16
        value = value.detach().cpu().double().numpy()
    try:
        return np.asarray(value, np.float64)
    except (TypeError, ValueError):
        raise UserError(
            f"compare_outputs: {path or 'the output'} is {type(value).__name__}, which is not a number or an array",
            "compare arrays, tensors, numbers, and lists or dicts of them",
        ) from None


def _place(path: str, index: Sequence[Any]) -> str:
    return f"{path}[{', '.join(str(int(each)) for each in index)}]" if len(index) else path or "the value"
