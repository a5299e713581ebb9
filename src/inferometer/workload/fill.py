"""How the inputs of a model are filled: the values of `data.fill`, and the defaults of inputs with well-known names.

A model of language fails with an index error if its tokens are random numbers of any size, so inputs that are called like those
of BERT, GPT and their relatives have defaults that every such model takes. They apply unless an input is named in the mapping.
"""

import difflib
import re
from collections.abc import Callable, Collection, Sequence

import numpy as np

from inferometer import tensors
from inferometer.config.data.tensors import Fill, InputFill
from inferometer.errors import UserError
from inferometer.tensors import Tensor, TensorSpec
from inferometer.workload import random_tensors

Filling = str | InputFill
"""How one input is filled: a word, `@FILE`, or a mapping."""

WORDS = ("random", "zeros", "ones")
"""What `data.fill` may say about all inputs; a single input may also be filled with `positions`."""
_INPUT_WORDS = (*WORDS, "positions")

_TOKENS = InputFill(random=[0, 1000])
"""Ids of tokens that every vocabulary has."""
_WELL_KNOWN: tuple[tuple[re.Pattern[str], Filling], ...] = (
    (re.compile(r"(\w+_)?attention_mask|input_mask"), "ones"),
    (re.compile(r"token_type_ids|segment_ids"), "zeros"),
    (re.compile(r"(\w+_)?input_ids|token_ids|input_tokens"), _TOKENS),
    (re.compile(r"(\w+_)?position_ids"), "positions"),
)
_DECORATION = re.compile(r"^serving_default_|(__|:|\.)\d+$")
"""What exporters add to names: `input_ids__0`, `serving_default_input_ids:0`."""


def well_known(name: str, datatype: str) -> Filling | None:
    """The default for an input of this name; None if there is none."""
    bare = _DECORATION.sub("", name.lower())
    found = next((filling for pattern, filling in _WELL_KNOWN if pattern.fullmatch(bare)), None)
    is_number = datatype in tensors.DATATYPES and datatype != "BYTES"
    if isinstance(found, InputFill):
        is_number = datatype in ("INT16", "INT32", "INT64", "UINT16", "UINT32", "UINT64")
    return found if is_number else None


def filling_of(fill: Fill, name: str, datatype: str) -> Filling:
    """How an input is filled; `@FILE` stands for a file that holds all inputs."""
    if isinstance(fill, str) and fill != "random":
        return fill
    if isinstance(fill, dict) and name in fill:
        return fill[name]
    return well_known(name, datatype) or "random"


def check(fill: Fill, specs: Sequence[TensorSpec]) -> None:
    """Raise UserError when `data.fill` does not fit a model with these inputs."""
    if isinstance(fill, str):
        if not fill.startswith("@") and fill not in WORDS:
            raise _unknown_word(fill, WORDS, "data.fill", "@FILE or @FOLDER")
        return
    by_name = {one.name: one for one in specs}
    for name, filling in fill.items():
        if name not in by_name:
            raise no_input(name, by_name, "data.fill")
        one = by_name[name]
        if isinstance(filling, InputFill):
            _check_mapping(one, filling)
        elif not filling.startswith("@"):
            if filling not in _INPUT_WORDS:
                raise _unknown_word(filling, _INPUT_WORDS, f"data.fill.{name}", "@FILE or a mapping")
            if filling in ("ones", "positions") and one.datatype == "BYTES":
                raise UserError(
                    f"{filling} does not go with BYTES", "give {value: TEXT} or {strings: [...]}", f"data.fill.{name}"
                )


def no_input(name: str, names: Collection[str], key: str) -> UserError:
    """The error about an input that the model does not have."""
    near = difflib.get_close_matches(name, names, 1, 0.4)
    hint = f"did you mean {near[0]}? " if near else ""
    return UserError(f"the model has no input {name}", f"{hint}its inputs are {', '.join(names) or 'none'}", key)


def _unknown_word(word: str, known: Sequence[str], key: str, others: str) -> UserError:
    near = difflib.get_close_matches(word, known, 1, 0.5)
    hint = f"did you mean {near[0]}? " if near else ""
    return UserError(f"{word!r:.60} is not known", f"{hint}use {', '.join(known)}, {others}", key)


def _check_mapping(one: TensorSpec, filling: InputFill) -> None:
    key = f"data.fill.{one.name}"
    given = [name for name in filling.__struct_fields__ if getattr(filling, name) not in (None, [])]
    if len(given) != 1:
        what = f"{' and '.join(given)} exclude each other" if given else "the mapping is empty"
        raise UserError(what, "give one of random, value, strings and length", key)
    if filling.random:
        if len(filling.random) != 2:
            raise UserError("a range has two numbers", "write {random: [low, high]}", key)
        random_tensors.check_range(one.name, one.datatype, (filling.random[0], filling.random[1]))
    elif filling.value is not None:
        try:
            tensors.filled(one.name, one.datatype, (1,), filling.value)
        except UserError as error:
            raise UserError(error.what, error.remedy or f"give a value of {one.datatype}", key) from None
    elif one.datatype != "BYTES":
        raise UserError(
            f"{given[0]} is for inputs of BYTES, but {one.name} is {one.datatype}", "give {random: [low, high]}", key
        )


def is_random(filling: Filling) -> bool:
    """Whether requests with this input differ."""
    if isinstance(filling, str):
        return filling == "random"
    return filling.value is None


def generate(one: TensorSpec, filling: Filling, seed: int, id: int) -> Tensor:
    """The input of request `id`, with the full shape of `one`. The filling must have been checked, and must not be a file."""
    name, datatype, shape, purpose = one.name, one.datatype, one.shape, f"tensor {one.name} {id}"
    if isinstance(filling, str):
        return _BY_WORD[filling](one, seed, purpose)
    if filling.random:
        return random_tensors.random(name, datatype, shape, seed, purpose, (filling.random[0], filling.random[1]))
    if filling.value is not None:
        return tensors.filled(name, datatype, shape, filling.value)
    if filling.strings:
        return random_tensors.chosen_words(name, shape, seed, purpose, filling.strings)
    return random_tensors.random_words(name, shape, seed, purpose, filling.length)


def _random(one: TensorSpec, seed: int, purpose: str) -> Tensor:
    return random_tensors.random(one.name, one.datatype, one.shape, seed, purpose)


def _zeros(one: TensorSpec, seed: int, purpose: str) -> Tensor:
    return tensors.zeros(one.name, one.datatype, one.shape)


def _ones(one: TensorSpec, seed: int, purpose: str) -> Tensor:
    """A tensor of ones or true; for BYTES, the text "1"."""
    values: dict[str, bool | str] = {"BOOL": True, "BYTES": "1"}
    return tensors.filled(one.name, one.datatype, one.shape, values.get(one.datatype, 1))


def _positions(one: TensorSpec, seed: int, purpose: str) -> Tensor:
    """Whole numbers from 0 along the last dimension."""
    numbers = np.arange(one.shape[-1] if one.shape else 1)
    array = np.broadcast_to(numbers if one.shape else numbers[0], one.shape)
    return tensors.from_numpy(one.name, array, one.datatype)


_BY_WORD: dict[str, Callable[[TensorSpec, int, str], Tensor]] = {
    "random": _random,
    "zeros": _zeros,
    "ones": _ones,
    "positions": _positions,
}
