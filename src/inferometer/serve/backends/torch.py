"""PyTorch models: TorchScript (.pt), an exported program (.pt2), or a model.py that builds a module.

    model.pt    torch.jit.save(...)     the configuration must declare inputs and outputs
    model.pt2   torch.export.save(...)  declares them itself
    model.py    def model() -> torch.nn.Module; CONFIG as in the Python backend; the parameter `weights` names a file beside
                it (safetensors, or a state_dict written by torch.save)

Inputs are passed as arguments: in numeric order if all are named like Triton's INPUT__0, by name if all are named like
the arguments of `forward`, otherwise in the configuration's order. The result is a tensor, a tuple or list of tensors
in the configuration's order, or a dict by output name. Pickles are not loaded, because they can run anything (see
pt2.py). Parameters: `threads` (per operation, on CPUs), `default_max_batch_size` (for an exported program with a
dynamic first dimension).
"""

import inspect
import logging
import re
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from inferometer.serve.backends import configured, pt2
from inferometer.serve.backends.tensors import (
    DTYPES,
    datatype_of,
    device_of,
    from_torch,
    pytorch,
    to_torch,
    use_threads,
)
from inferometer.serve.models.types import Loaded, Loading, Parameters, Refused, Tensors
from inferometer.tensors import TensorSpec, shown

_NUMBERED = re.compile(r".*__(\d+)")
_IN_PLACE = re.compile(r"aten::\w*[a-z0-9]_\(")
_LAST_FRAME = "<--- HERE\n"


class _Module(msgspec.Struct):
    """A loaded module, ready to be called."""

    call: Any
    arguments: tuple[str, ...] | None
    """Argument names of `forward` in order; None if it accepts anything."""
    keywords: frozenset[str] = frozenset()
    """Arguments that must be passed by name."""
    by_name: bool = True
    """Whether all arguments may be passed by name."""
    writes: bool = True
    """Whether it may write to its inputs, which are copied then."""
    close: Callable[[], None] = lambda: None


def load(loading: Loading) -> Loaded:
    torch = pytorch()
    device = device_of(loading, torch)
    path = configured.model_file(loading, "model.pt2", "model.pt", "model.py")
    threads = configured.whole(loading, "threads", 0)
    module = _read(loading, torch, path, device)
    configured.require(loading)
    inputs, outputs = configured.specs(loading.config.input), configured.specs(loading.config.output)
    for spec in (*inputs, *outputs):
        if spec.datatype not in DTYPES:
            what = f"{spec.name} is {spec.datatype}, which PyTorch does not support"
            raise loading.error(what, f"supported types: {', '.join(DTYPES)}")
    arranged = _arrangement(loading, module, inputs)

    def run(given: Tensors, parameters: Parameters) -> Tensors:
        use_threads(torch, threads)
        with torch.inference_mode():
            made = {name: to_torch(torch, tensor, device, module.writes) for name, tensor in given.items()}
            positional, keywords = arranged(made)
            found = _outputs(torch, loading.name, _called(module, positional, keywords), outputs)
            return {spec.name: from_torch(torch, spec.name, one) for spec, one in zip(outputs, found, strict=True)}

    return Loaded(run=run, close=module.close)


# --- files -----------------------------------------------------------------------------------------------------------


def _read(loading: Loading, torch: Any, path: Path, device: Any) -> _Module:
    if path.suffix == ".py":
        return _from_python(loading, torch, path, device)
    exported = path.suffix == ".pt2"
    remedy = "save it with torch.export.save" if exported else "save it with torch.jit.save; pickles are not loaded"
    if not zipfile.is_zipfile(path):
        raise loading.error(f"{path.name} is not a PyTorch file, or is damaged", remedy)
    read = _exported if exported else _script
    with _quiet():
        return configured.attempt(loading, path, remedy, lambda: read(loading, torch, path, device))


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the traceback that PyTorch logs before it raises, and its warning that TorchScript is deprecated."""
    logger = logging.getLogger("torch.export")
    before, logger.disabled = logger.disabled, True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.disabled = before


def _script(loading: Loading, torch: Any, path: Path, device: Any) -> _Module:
    module = torch.jit.load(str(path), map_location=device).eval()
    names = tuple(one.name for one in module.forward.schema.arguments[1:])
    if not loading.config.input:
        what = f"a TorchScript file does not contain the shapes and types of {', '.join(names)}"
        raise loading.error(what, "list input and output in a config.pbtxt, or export the model as .pt2")
    return _Module(module, names, writes=_IN_PLACE.search(str(module.inlined_graph)) is not None)


def _exported(loading: Loading, torch: Any, path: Path, device: Any) -> _Module:
    pt2.check(torch, loading.name, path)
    program = torch.export.load(str(path))
    if device.type != "cpu":
        program = configured.package("torch.export.passes", "torch").move_to_device_pass(program, device)
    signature, spec = program.graph_signature, program.call_spec.in_spec
    names = tuple(map(str, signature.user_inputs))
    positional, keywords = spec.children()
    if spec.num_leaves != positional.num_children + keywords.num_children:
        raise loading.error(f"{path.name} takes lists or dicts of tensors", "export it with plain arguments")
    by_name = names[: positional.num_children] + tuple(map(str, keywords.context or ()))
    facts = {node.name: node.meta.get("val") for node in program.graph.nodes}
    made, count = program.call_spec.out_spec, len(signature.user_outputs)
    has_keys = made.type is dict and made.num_children == count
    called = [str(key) if has_keys else f"OUTPUT__{key}" for key in (made.context if has_keys else range(count))]
    outputs = zip(called, signature.user_outputs, strict=True)
    configured.complete(
        loading,
        [_spec(loading, name, facts.get(node)) for name, node in zip(by_name, names, strict=True)],
        [_spec(loading, name, facts.get(str(node))) for name, node in outputs],
    )
    by_keyword, writes = frozenset(by_name[positional.num_children :]), bool(signature.user_inputs_to_mutate)
    return _Module(program.module(), by_name, keywords=by_keyword, by_name=False, writes=writes)


def _spec(loading: Loading, name: str, value: Any) -> TensorSpec:
    if not hasattr(value, "dtype"):
        raise loading.error(f"{name} of the exported program is not a tensor", "export it with tensors only")
    shape = tuple(size if isinstance(size, int) else -1 for size in value.shape)
    return TensorSpec(name, datatype_of(value), shape)


def _from_python(loading: Loading, torch: Any, path: Path, device: Any) -> _Module:
    source = configured.python_file(loading, path)
    build = getattr(source, "model", None)
    if not callable(build):
        raise loading.error(f"{path.name} has no function model", "define model() that returns a module")
    module = configured.attempt(loading, path, "fix model()", build)
    if not isinstance(module, torch.nn.Module):
        raise loading.error(f"model() in {path.name} returned {type(module).__name__}, not a torch.nn.Module")
    if weights := loading.parameter("weights"):
        _add_weights(loading, torch, module, path.parent, weights)
    taken = inspect.signature(module.forward).parameters.values()
    plain = all(one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY) for one in taken)
    return _Module(
        module.eval().to(device),
        tuple(one.name for one in taken) if plain else None,
        keywords=frozenset(one.name for one in taken if one.kind == one.KEYWORD_ONLY),
        by_name=all(one.kind != one.POSITIONAL_ONLY for one in taken),
        close=lambda: configured.forget(source),
    )


def _add_weights(loading: Loading, torch: Any, module: Any, folder: Path, name: str) -> None:
    path = folder / name
    if Path(name).name != name or path.resolve().parent != folder.resolve():
        raise loading.error(f"the weights file {name!r:.60} is not in the model's folder", "add the file")

    def read() -> None:
        if path.suffix == ".safetensors":
            state = configured.package("safetensors.torch", "torch").load_file(path)
        else:
            state = torch.load(path, map_location="cpu", weights_only=True)
        module.load_state_dict(state)

    configured.attempt(loading, path, "save the state_dict() of the same module", read)


# --- arguments and answers -------------------------------------------------------------------------------------------

Arranged = Callable[[dict[str, Any]], tuple[list[Any], dict[str, Any]]]


def _arrangement(loading: Loading, module: _Module, inputs: Sequence[TensorSpec]) -> Arranged:
    """Return how named inputs are passed as arguments."""
    names, taken = [spec.name for spec in inputs], module.arguments
    if taken is not None and len(names) > len(taken):
        what = f"the configuration lists {len(names)} inputs, but forward takes {len(taken)}: {', '.join(taken)}"
        raise loading.error(what, "list one input per argument")
    numbers = [_NUMBERED.fullmatch(name) for name in names]
    if taken is not None and set(names) <= set(taken):
        order = {name: name for name in taken if name in names}
        if module.by_name:
            return lambda made: ([], made)
    elif all(numbers):
        by_number = sorted(names, key=lambda name: int(name.rpartition("__")[2]))
        order = dict(zip(by_number, taken or by_number, strict=False))
    else:
        order = dict(zip(names, taken or names, strict=False))
    by_position = [name for name, argument in order.items() if argument not in module.keywords]
    by_keyword = {name: argument for name, argument in order.items() if argument in module.keywords}

    def arranged(made: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        given = [name in made for name in by_position]
        count = sum(given)
        if not all(given[:count]):
            missing = by_position[given.index(False)]
            what = f"model '{loading.name}' requires input '{missing}' when a later input is given"
            raise Refused("INVALID_ARGUMENT", what)
        keywords = {argument: made[name] for name, argument in by_keyword.items() if name in made}
        return [made[name] for name in by_position[:count]], keywords

    return arranged


def _called(module: _Module, positional: list[Any], keywords: dict[str, Any]) -> Any:
    """Call the module and shorten TorchScript's errors: they contain source locations of the model's author and of this
    machine, and the reason at the very end, which is the only part for clients."""
    try:
        return module.call(*positional, **keywords)
    except Exception as error:
        _, found, why = str(error).rpartition(_LAST_FRAME)
        if not found or not why.strip():
            raise
        raise Refused("INTERNAL", " ".join(why.split())) from None


def _outputs(torch: Any, name: str, answer: Any, outputs: Sequence[TensorSpec]) -> list[Any]:
    """Return the response's tensors, one per configured output."""
    if isinstance(answer, torch.Tensor):
        found = [answer]
    elif isinstance(answer, dict):
        named = all(spec.name in answer for spec in outputs)
        found = [answer[spec.name] for spec in outputs] if named else list(answer.values())
    else:
        found = list(answer) if isinstance(answer, list | tuple) else [answer]
    if len(found) < len(outputs):
        what = f"model '{name}' returned {len(found)} outputs, but the configuration lists {len(outputs)}"
        raise Refused("INTERNAL", what)
    for spec, one in zip(outputs, found, strict=False):
        if not isinstance(one, torch.Tensor):
            raise Refused("INTERNAL", f"model '{name}': output '{spec.name}' is {type(one).__name__}, not a tensor")
        if datatype_of(one) != spec.datatype:
            what = f"model '{name}': output '{spec.name}' is {datatype_of(one)} {shown(tuple(one.shape))}"
            raise Refused("INTERNAL", f"{what}, the configuration says {spec.datatype}")
    return found[: len(outputs)]
