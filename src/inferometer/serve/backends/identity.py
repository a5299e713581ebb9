"""The identity backend: output i is input i. The bytes are passed through, so that only the server is measured."""

from inferometer.errors import UserError
from inferometer.serve.models.types import Loaded, Loading, Tensors
from inferometer.tensors import Tensor


def load(loading: Loading) -> Loaded:
    renamed = pairs(loading)
    return Loaded(instant=lambda inputs, parameters: passed_on(inputs, renamed))


def pairs(loading: Loading) -> dict[str, str]:
    """Return the output for each input."""
    config = loading.config
    if not config.input and not config.output:
        config.input.add(name="INPUT0", data_type="TYPE_FP32", dims=[-1])
    if not config.output:
        for i, each in enumerate(config.input):
            config.output.add(name=f"OUTPUT{i}", data_type=each.data_type, dims=each.dims)
    if [(each.data_type, list(each.dims)) for each in config.input] != [
        (each.data_type, list(each.dims)) for each in config.output
    ]:
        raise UserError(
            f"model {loading.name}: the outputs do not match the inputs",
            "configure one output per input, with the same data_type and dims",
        )
    return {given.name: made.name for given, made in zip(config.input, config.output, strict=True)}


def passed_on(inputs: Tensors, renamed: dict[str, str]) -> Tensors:
    return {
        (name := renamed[tensor.name]): Tensor(name, tensor.datatype, tensor.shape, tensor.data)
        for tensor in inputs.values()
    }
