"""Checks a request against the model before it is queued; the messages are Triton's, with the expected and the actual
value appended where Triton omits them.

`check` is always fast: it remembers the names, datatypes and shapes that were valid. Slow checks are left to `read`, which
runs in a thread if there is much to do: long lists of strings have to be walked one by one, and large inputs may still be
in shared memory.
"""

import math
import struct
from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from typing import Any, NoReturn

from inferometer.serve.models.types import NEVER, Inference, ModelSignature, Refused, Tensors, Wanted
from inferometer.serve.offload import COPIED, LARGE, STRING
from inferometer.tensors import DATATYPES, Tensor, TensorSpec

NOT_FOR_THE_MODEL = frozenset({"binary_data_output", "priority", "timeout", "triton_enable_empty_final_response"})
"""Parameters for the server: requests may share a batch even if they differ in these."""
MANY = LARGE // STRING
"""Strings that are checked without a thread."""
_MOST = 1024
"""Valid combinations that are remembered."""
_LENGTH = struct.Struct("<I")
_BATCH_NOTE = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each input "
    "shape. If you want to specify the full shape including the batch dim in your input dims config, try setting "
    "max_batch_size to zero. See the model configuration docs for more info on max_batch_size."
)


class Taken:
    """A model's inputs and outputs, prepared for checking requests."""

    def __init__(self, model: str, max_batch: int, facts: ModelSignature, is_keyed: bool) -> None:
        self.model, self.max_batch = model, max_batch
        """The maximum is 0 if the model does not support batches."""
        self.inputs, self.outputs = ({spec.name: spec for spec in specs} for specs in (facts.inputs, facts.outputs))
        self.required = frozenset(spec.name for spec in facts.inputs if not spec.optional)
        self.has_strings = any(spec.datatype == "BYTES" for spec in facts.inputs)
        """Whether an input is BYTES, whose size does not follow from its shape."""
        self.is_keyed = is_keyed
        """Whether requests may be joined, so that `Inference.key` is needed."""
        self.known: dict[Any, tuple[int, Any]] = {}
        """The rows and the key for valid names, datatypes, shapes and sizes."""


def check(inference: Inference, model: Taken) -> bool:
    """Set `rows` and `key`, or raise Refused. Return False if `read` has to check the inputs, too."""
    inputs, is_whole, signature, known = inference.inputs, True, None, None
    if not model.has_strings and not inference.unread:
        signature = tuple([(name, one.datatype, one.shape, len(one.data)) for name, one in inputs.items()])
        known = model.known.get(signature)
    if known is None:
        is_whole = _check_inputs(inference, model)
        shapes = tuple(sorted([(name, one.shape[1:]) for name, one in inputs.items()])) if model.is_keyed else None
        known = inference.rows, shapes
        if signature is not None:
            if len(model.known) >= _MOST:
                model.known.clear()
            model.known[signature] = known
    inference.rows = known[0]
    if inference.wanted:
        _check_outputs(inference, model)
    if model.is_keyed:
        given = sorted(inference.parameters.items()) if inference.parameters else ()
        # With the type: True equals 1, but a model may treat them differently.
        inference.key = known[1], [(name, type(one), one) for name, one in given if name not in NOT_FOR_THE_MODEL]
    return is_whole


def work(inference: Inference) -> int:
    """Return the size of the work of `read` for a request that `check` found to need it."""
    sizes = [unread.size for unread in inference.unread.values()]
    if min(sizes, default=0) < 0:  # not known
        return LARGE + 1
    strings = [math.prod(one.shape) for one in inference.inputs.values() if one.datatype == "BYTES"]
    return max(-(-sum(sizes) // COPIED), *(STRING * count for count in strings), 0)


def read(inference: Inference, model: Taken) -> Tensors:
    """Return the inputs, all read and checked, or raise Refused. The request is not modified."""
    inputs = dict(inference.inputs)
    for name, unread in inference.unread.items():
        tensor = inputs[name]
        inputs[name] = Tensor(name, tensor.datatype, tensor.shape, unread.read())
        _check_size(inference, model, inputs[name], len(inputs[name].data))
    for tensor in inputs.values():
        if tensor.datatype == "BYTES":
            _check_strings(inference, model, tensor)
    return inputs


# --- inputs ----------------------------------------------------------------------------------------------------------


def _check_inputs(inference: Inference, model: Taken) -> bool:
    """Set `rows`. Return False if there is more to check."""
    inputs, specs = inference.inputs, model.inputs
    if not (model.required <= inputs.keys() <= specs.keys()):
        _wrong_names(inference, model)
    rows, is_whole = 0, not inference.unread
    for name, tensor in inputs.items():
        is_whole &= _check_one(inference, model, tensor, specs[name])
        if not model.max_batch:
            continue
        given = tensor.shape[0]
        if rows and given != rows:
            words = f"input '{name}' batch size does not match other inputs for '{model.model}'"
            _refuse(inference, f"{words}: expected {rows}, got {given}")
        rows = given
    if rows > model.max_batch > 0:
        _refuse(inference, f"inference request batch-size must be <= {model.max_batch} for '{model.model}', got {rows}")
    inference.rows = rows or 1
    return is_whole


def _check_one(inference: Inference, model: Taken, tensor: Tensor, spec: TensorSpec) -> bool:
    """Return False if there is more to check."""
    shape = tensor.shape
    if tensor.datatype != spec.datatype:
        words = f"inference input '{spec.name}' data-type is '{tensor.datatype}'"
        _refuse(inference, f"{words}, but model '{model.model}' expects '{spec.datatype}'")
    if not fits(shape, spec.shape):
        words = f"unexpected shape for input '{spec.name}' for model '{model.model}'. Expected {_shown(spec.shape)}"
        note = f". {_BATCH_NOTE}" if model.max_batch else ""
        _refuse(inference, f"{words}, got {_shown(shape)}{note}")
    if model.max_batch and shape[0] < 1:
        _refuse(inference, f"inference request batch-size must be >= 1 for '{model.model}', got {shape[0]}")
    if inference.unread and spec.name in inference.unread:
        _check_size(inference, model, tensor, inference.unread[spec.name].size)
        return False
    if spec.datatype == "BYTES" and math.prod(shape) <= MANY:
        _check_strings(inference, model, tensor)
        return True
    _check_size(inference, model, tensor, len(tensor.data))
    return spec.datatype != "BYTES"


def _check_size(inference: Inference, model: Taken, tensor: Tensor, given: int) -> None:
    """Check `given` bytes; -1 if not known yet."""
    expected, size = math.prod(tensor.shape), DATATYPES[tensor.datatype].size
    if given >= 0 and size and expected * size != given:
        words = f"input byte size mismatch for input '{tensor.name}' for model '{model.model}'"
        _refuse(inference, f"{words}. Expected {expected * size}, got {given}")
    if given >= 0 and not size and expected > MANY and 4 * expected > given:  # each string has at least a length prefix
        words = f"unexpected number of string elements for inference input '{tensor.name}' for model '{model.model}'"
        _refuse(inference, f"{words}, expecting {expected}: {given} bytes hold at most {given // 4}")


def fits(shape: Sequence[int], expected: Sequence[int]) -> bool:
    """Whether each size equals the expected one, or the expected one is -1."""
    if len(shape) != len(expected):
        return False
    for i, size in enumerate(shape):  # noqa: SIM110  (a generator costs more than what it looks at, and so does zip)
        if size < 0 or size != expected[i] != -1:
            return False
    return True


def _check_strings(inference: Inference, model: Taken, tensor: Tensor) -> None:
    data, at, found = tensor.data, 0, 0
    expected, end = math.prod(tensor.shape), len(tensor.data)
    while at < end and found <= expected:
        if at + 4 > end:
            words = f"incomplete string length indicator {_of(tensor, model)}, expecting 4 bytes but only {end - at}"
            _refuse(
                inference, f"{words} bytes available. Please make sure the string length indicator is in one buffer."
            )
        (size,) = _LENGTH.unpack_from(data, at)
        at += 4
        if at + size > end:
            words = f"incomplete string data for inference input '{tensor.name}', expecting string of length {size}"
            _refuse(inference, f"{words} but only {end - at} bytes available")
        at += size
        found += 1
        if not found % MANY and inference.is_over:
            return  # the request was cancelled
    if found != expected:
        count = f"{found} or more" if at < end else f"{found}"
        _refuse(inference, f"unexpected number of string elements {count} {_of(tensor, model)}, expecting {expected}")


def _wrong_names(inference: Inference, model: Taken) -> NoReturn:
    given, of_model = inference.inputs, f"model '{model.model}'"
    missing = [name for name in model.inputs if name in model.required and name not in given]
    unknown = next((name for name in given if name not in model.inputs), None)
    if unknown is not None and len(given) <= len(model.inputs):
        words = f"unexpected inference input '{unknown}' for {of_model}, which has {_few(model.inputs)}"
        raise Refused("INVALID_ARGUMENT", words)
    has = f" The model has {_few(model.inputs)}." if unknown is not None else ""
    words = f"expected {len(model.inputs)} inputs but got {len(given)} inputs for {of_model}. Got input(s) [{_quoted(given)}]"
    required = f"missing required input(s) [{_quoted(missing)}]. Please provide all required input(s)."
    _refuse(inference, f"{words}, but {required}{has}")


# --- outputs ---------------------------------------------------------------------------------------------------------


def _check_outputs(inference: Inference, model: Taken) -> None:
    wanted: dict[str, Wanted] = {}
    for each in inference.wanted:
        spec = model.outputs.get(each.name)
        if spec is None:
            words = f"unexpected inference output '{each.name}' for model '{model.model}'"
            raise Refused("INVALID_ARGUMENT", f"{words}, which has {_few(model.outputs)}")
        if each.classes > 0 and each.placed is not None:
            raise Refused("INVALID_ARGUMENT", "Output can't set both 'shared_memory_region' and 'classification'")
        if each.classes > 0 and spec.datatype == "BYTES":
            _refuse(inference, f"classification is not possible for output '{each.name}': its data-type is 'BYTES'")
        wanted[each.name] = each
    if len(wanted) < len(inference.wanted):
        inference.wanted = tuple(wanted.values())


def timeout_ns(inference: Inference) -> int:
    """Return the request's own timeout in ns, or 0."""
    timeout = inference.parameters.get("timeout", 0)
    try:
        microseconds = int(timeout)
    except (ValueError, OverflowError):
        microseconds = -1
    if not 0 <= microseconds < NEVER // 1000:
        _refuse(inference, f"timeout must be a number of microseconds (got {str(timeout)[:40]})")
    return microseconds * 1000


# --- messages --------------------------------------------------------------------------------------------------------


def _refuse(inference: Inference, message: str) -> NoReturn:
    raise Refused("INVALID_ARGUMENT", named(inference, message))


def named(inference: Inference, message: str) -> str:
    return f"[request id: {inference.id or '<id_unknown>'}] {message}"


def _of(tensor: Tensor, model: Taken) -> str:
    return f"for inference input '{tensor.name}' for model '{model.model}'"


def _shown(shape: Sequence[int]) -> str:
    return f"[{','.join(map(str, shape[:16]))}{',...' if len(shape) > 16 else ''}]"


def _quoted(names: Iterable[str]) -> str:
    return ",".join(f"'{name}'" for name in names)


def _few(names: Collection[str]) -> str:
    return (_quoted(islice(names, 16)) + (",..." if len(names) > 16 else "")) or "none"
