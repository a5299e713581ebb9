"""The identity backend: output i is input i. The bytes are passed through, so that only the server is measured."""

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
    inputs, outputs = ([(one.data_type, [*one.dims]) for one in fields] for fields in (config.input, config.output))
    if inputs != outputs:
        remedy = "configure one output per input, with the same data_type and dims"
        raise loading.error("the outputs do not match the inputs", remedy)
    return {given.name: made.name for given, made in zip(config.input, config.output, strict=True)}


def passed_on(inputs: Tensors, renamed: dict[str, str]) -> Tensors:
    outputs: Tensors = {}
    for tensor in inputs.values():
        name = renamed[tensor.name]
        outputs[name] = Tensor(name, tensor.datatype, tensor.shape, tensor.data)
    return outputs
