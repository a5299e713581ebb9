"""Tensors for KServe v2 models, and messages for gRPC methods."""

from typing import Annotated, Any, Literal

from msgspec import Meta, field

from inferometer.config.fields import Count, Section


class TensorInput(Section):
    """One input of a model."""

    name: Annotated[str, Meta(description="Name of the input.")]
    datatype: Annotated[str, Meta(description="BOOL, INT8 ... UINT64, FP16, BF16, FP32, FP64, BYTES.")]
    shape: Annotated[list[int], Meta(description="Its shape, with -1 for dimensions of any size.")]


class Tensors(Section, tag_field="type", tag="tensors"):
    """Tensors for a KServe v2 model, generated from its metadata."""

    fill: Annotated[
        str,
        Meta(
            description='`zeros`, `random`, or `"@FILE"` (YAML needs the quotes): a `.npy` or `.npz` file, or what perf_analyzer\'s `--input-data` takes: a JSON file, or a folder with one file per input (raw numbers, or one string per '
            "line)."
        ),
    ] = "random"
    shape: Annotated[
        dict[str, list[int]],
        Meta(
            description="Full shapes by input, including the batch: `{INPUT0: [1, 1000]}`. Default: 1 for dynamic dimensions."
        ),
    ] = field(default_factory=dict)
    batch: Annotated[
        Count,
        Meta(description="Batch size, for models that take batches. It must agree with `shape`."),
    ] = 1
    sequence: Annotated[
        Annotated[int, Meta(ge=0)] | Literal["streams"],
        Meta(
            description="Requests per sequence, which share a correlation id and have start and end flags; each user of a closed loop runs one sequence at a time. `streams`: each list in the JSON file is one sequence, which is the default for models that keep sequences. 0: no sequences."
        ),
    ] = 0
    inputs: Annotated[
        list[TensorInput], Meta(description="The inputs of the model. Default: from the server's metadata.")
    ] = field(default_factory=list)


class Images(Section, tag_field="type", tag="images"):
    """Images for a model that takes them, prepared as `infer --image` does."""

    path: Annotated[str, Meta(description="An image, or a folder of images.")]
    batch: Annotated[Count, Meta(description="Images per request, for models that take batches.")] = 1


class Messages(Section, tag_field="type", tag="messages"):
    """Messages for a gRPC method, used in turn: JSON or bytes."""

    messages: Annotated[
        list[Any], Meta(description="Requests as JSON; a list within the list is a stream of several messages.")
    ] = field(default_factory=list)
    path: Annotated[
        str | None, Meta(description="A file with one JSON request per line, or (`.bin`) one encoded message.")
    ] = None
