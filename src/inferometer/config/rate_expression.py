"""Rates that change over time by a formula: `10 + 5*sin(2*pi*t/60)`, where t is the time in seconds since the start of the stage.

A formula has numbers, t, pi, e, the operators + - * / ** %, comparisons with and, or and not, `a if condition else b`, and
FUNCTIONS. It is parsed by Python's parser and checked node by node, so nothing else can be in it; schedule/expression.py evaluates it.
"""

import ast
import math

from inferometer.errors import UserError

FUNCTIONS = {"sin": 1, "cos": 1, "exp": 1, "log": 1, "sqrt": 1, "abs": 1, "floor": 1, "min": 2, "max": 2}
"""Functions and how many arguments they need; min and max take more as well."""
CONSTANTS = {"pi": math.pi, "e": math.e}
_REMEDY = (
    'write a number, or a formula of t in seconds such as "10 + 5*sin(2*pi*t/60)", or a range such as "100:500:100"'
)
_LONGEST = 1000

_ALLOWED = (
    *(ast.Constant, ast.Name, ast.BinOp, ast.UnaryOp, ast.Compare, ast.BoolOp, ast.IfExp, ast.Call),
    *(ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow, ast.Mod, ast.UAdd, ast.USub),
    *(ast.And, ast.Or, ast.Not, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq, ast.Load),
)
_LARGEST = 1e300


def parse(text: str, key: str = "") -> ast.expr:
    """Parse and check a formula; UserError says what is wrong with it."""
    if len(text) > _LONGEST:
        raise UserError(f"the formula has more than {_LONGEST} characters", _REMEDY, key)
    try:
        formula = ast.parse(text.strip(), mode="eval").body
        _check(formula)
    except SyntaxError:
        raise UserError(f"{text!r} is not a formula", _REMEDY, key) from None
    except (RecursionError, MemoryError):
        raise UserError(f"{text[:40]!r}... is nested too deeply", _REMEDY, key) from None
    except ValueError as error:
        raise UserError(f"{text!r} is not a formula: {error}", _REMEDY, key) from None
    return formula


def _check(node: ast.AST) -> None:
    """Raise ValueError if something is not allowed in a formula."""
    if not isinstance(node, _ALLOWED):
        shown = repr(ast.unparse(node)[:40]) if isinstance(node, ast.expr) else type(node).__name__
        raise ValueError(f"{shown} is not allowed in a formula")
    parts = list(ast.iter_child_nodes(node))
    if isinstance(node, ast.Constant):
        _check_number(node.value)
    elif isinstance(node, ast.Name) and node.id != "t" and node.id not in CONSTANTS:
        raise ValueError(f"there is no {node.id!r}: it may use t, {', '.join(CONSTANTS)} and {', '.join(FUNCTIONS)}")
    elif isinstance(node, ast.Call):
        _check_call(node)
        parts = list(node.args)
    for part in parts:
        _check(part)


def _check_number(value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > _LARGEST:
        raise ValueError(f"{value!r} is not a number"[:80])


def _check_call(call: ast.Call) -> None:
    name = call.func.id if isinstance(call.func, ast.Name) else ""
    if name not in FUNCTIONS or call.keywords:
        raise ValueError(f"{ast.unparse(call)[:40]!r} is not allowed: functions are {', '.join(FUNCTIONS)}")
    wanted, given = FUNCTIONS[name], len(call.args)
    if given < wanted or (given > wanted and name not in ("min", "max")):
        raise ValueError(f"{name} takes {wanted} argument{'s' * (wanted > 1)}, not {given}")
