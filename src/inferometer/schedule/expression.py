"""Evaluates the formula of a rate (config/rate_expression.py) for many times at once, with the same result on every machine.

Only operations that IEEE 754 defines exactly are used; logarithm and exponential are those of portable_math, sine and cosine are
below. A power with a whole number as exponent is a product, any other is exp(y log x).
"""

import ast
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.config.rate_expression import CONSTANTS
from inferometer.portable_math import exp, log

Floats = NDArray[np.float64]

_LARGEST_PRODUCT = 64
"""Largest exponent for which a power is a product."""


def evaluate(formula: ast.expr, t: Floats) -> Floats:
    """The value at each time. It may be infinite or not a number, as after a division by 0."""
    with np.errstate(all="ignore"):
        value = _value(formula, t)
    return np.broadcast_to(np.asarray(value, dtype=np.float64), t.shape).copy()


def _value(node: ast.expr, t: Floats) -> Any:
    return _NODES[type(node)](node, t)


def _constant(node: ast.Constant, t: Floats) -> Any:
    return np.float64(node.value)  # type: ignore[arg-type]


def _name(node: ast.Name, t: Floats) -> Any:
    return t if node.id == "t" else np.float64(CONSTANTS[node.id])


def _unary(node: ast.UnaryOp, t: Floats) -> Any:
    return _OPERATORS[type(node.op)](_value(node.operand, t))


def _binary(node: ast.BinOp, t: Floats) -> Any:
    return _OPERATORS[type(node.op)](_value(node.left, t), _value(node.right, t))


def _compare(node: ast.Compare, t: Floats) -> Any:
    values = [_value(part, t) for part in (node.left, *node.comparators)]
    pairs = zip(node.ops, values, values[1:], strict=False)
    return np.logical_and.reduce(np.broadcast_arrays(*(_OPERATORS[type(op)](a, b) for op, a, b in pairs)))


def _combine(node: ast.BoolOp, t: Floats) -> Any:
    return _OPERATORS[type(node.op)](np.broadcast_arrays(*(_value(part, t) != 0 for part in node.values)))


def _choose(node: ast.IfExp, t: Floats) -> Any:
    return np.where(_value(node.test, t) != 0, _value(node.body, t), _value(node.orelse, t))


def _call(node: ast.Call, t: Floats) -> Any:
    function = _FUNCTIONS[node.func.id]  # type: ignore[attr-defined]
    first, *others = (_value(part, t) for part in node.args)
    return reduce(function, others, first) if others else function(first)


def _power(x: Any, y: Any) -> Any:
    """x to the power of y; not a number if x is negative and y is not a whole number."""
    if np.ndim(y) == 0 and y == np.rint(y) and abs(y) <= _LARGEST_PRODUCT:
        product = np.ones_like(x, dtype=np.float64)
        for _ in range(int(abs(y))):
            product = product * x
        return product if y >= 0 else 1 / product
    x, y = np.broadcast_arrays(np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64))
    power = exp(y * log(np.where(x > 0, x, 1.0)))
    at_zero = np.where(y > 0, 0.0, np.where(y == 0, 1.0, np.inf))
    return np.where(x > 0, power, np.where(x == 0, at_zero, np.nan))


def _log(x: Any) -> Any:
    x = np.asarray(x, dtype=np.float64)
    return np.where(x > 0, log(np.where(x > 0, x, 1.0)), np.nan)


def _sqrt(x: Any) -> Any:
    return np.sqrt(x)  # IEEE 754 defines it exactly


def _exp(x: Any) -> Any:
    return exp(np.asarray(x, dtype=np.float64))


# --- sine and cosine -------------------------------------------------------------------------------------------------

_QUARTERS = 0.6366197723675814
"""2 / pi."""
_QUARTER = (1.57079632673412561417e00, 6.07710050630396597660e-11, 2.02226624879595063154e-21)
"""pi / 2 in parts. The first two have 33 bits, so that their products with numbers of quarters up to 2^20 are exact."""
_TERMS = 10


def sin(x: Any) -> Any:
    """Sine: of what is left of x after whole quarters of a turn, by its Taylor series or that of the cosine."""
    return _turned(x, 0)


def cos(x: Any) -> Any:
    return _turned(x, 1)


def _turned(x: Any, quarters: int) -> Any:
    """sin(x + quarters * pi / 2)."""
    x = np.asarray(x, dtype=np.float64)
    k = np.rint(x * _QUARTERS)
    r = ((x - k * _QUARTER[0]) - k * _QUARTER[1]) - k * _QUARTER[2]
    square = r * r
    # Horner's scheme: sin r = r (1 - r^2 / (2 * 3) (1 - r^2 / (4 * 5) (...))), cos r = 1 - r^2 / (1 * 2) (1 - ...).
    sine, cosine = np.ones_like(r), np.ones_like(r)
    for n in range(_TERMS, 0, -1):
        sine = 1 - square * sine / (2 * n * (2 * n + 1))
        cosine = 1 - square * cosine / ((2 * n - 1) * 2 * n)
    turn = np.mod(k + quarters, 4)
    value = np.where(np.mod(turn, 2) == 0, r * sine, cosine)
    return np.where(turn >= 2, -value, value)


_OPERATORS: dict[type, Callable[..., Any]] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.Div: np.divide,
    ast.Mod: np.mod,
    ast.Pow: _power,
    ast.And: np.logical_and.reduce,
    ast.Or: np.logical_or.reduce,
    ast.UAdd: np.positive,
    ast.USub: np.negative,
    ast.Not: np.logical_not,
    ast.Lt: np.less,
    ast.LtE: np.less_equal,
    ast.Gt: np.greater,
    ast.GtE: np.greater_equal,
    ast.Eq: np.equal,
    ast.NotEq: np.not_equal,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "sin": sin,
    "cos": cos,
    "exp": _exp,
    "log": _log,
    "sqrt": _sqrt,
    "abs": np.abs,
    "floor": np.floor,
    "min": np.minimum,
    "max": np.maximum,
}
_NODES: dict[type, Callable[..., Any]] = {
    ast.Constant: _constant,
    ast.Name: _name,
    ast.UnaryOp: _unary,
    ast.BinOp: _binary,
    ast.Compare: _compare,
    ast.BoolOp: _combine,
    ast.IfExp: _choose,
    ast.Call: _call,
}
