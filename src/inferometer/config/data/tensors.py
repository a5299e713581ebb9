"""Tensors for KServe v2 models, and messages for gRPC methods."""

from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from msgspec import Meta, field

from inferometer.config.fields import Count, Section
from inferometer.config.lengths import Length

if TYPE_CHECKING:
    Size = Length
else:
    Size = Union[(int, *(part for part in get_args(Length) if get_origin(part) is not Annotated))]
"""The size of a dimension: like a length, but 0 is a size, too."""


class TensorInput(Section):
    """One input or output of a model."""

    name: Annotated[str, Meta(description="Its name.")]
    datatype: Annotated[str, Meta(description="BOOL, INT8 ... UINT64, FP16, BF16, FP32, FP64, BYTES.")]
    shape: Annotated[list[int], Meta(description="Its shape, with -1 for dimensions of any size.")]
    optional: Annotated[bool, Meta(description="Requests may leave it out.")] = False


class InputFill(Section):
    """How to generate one input: exactly one of these keys."""

    random: Annotated[
        list[int | float],
        Meta(description="`[low, high]`: random numbers from `low` up to, but not including, `high`.", max_length=2),
    ] = field(default_factory=list)
    value: Annotated[bool | int | float | str | None, Meta(description="The value of every element.")] = None
    strings: Annotated[list[str], Meta(description="BYTES: every element is one of these, at random.")] = field(
        default_factory=list
    )
    length: Annotated[Length | None, Meta(description="BYTES: length of random strings, in characters.")] = None


Fill = str | dict[str, str | InputFill]

_FILL = (
    "`random`, `zeros`, `ones`, `positions` (0, 1, 2 ... along the last dimension), `{random: [low, high]}` (`high` is not included), "
    '`{value: 5}`, for BYTES `{strings: [a, b]}` or `{length: 20}`, or `"@FILE"`'
)


class Tensors(Section, tag_field="type", tag="tensors"):
    """Tensors for a KServe v2 model, generated from its metadata."""

    fill: Annotated[
        Fill,
        Meta(
            description='`random`, `zeros`, `ones`, or `"@FILE"` (YAML needs the quotes): a `.npy` or `.npz` file, or what perf_analyzer\'s `--input-data` takes: a JSON file, or a folder with one file per input (raw numbers, or one string per '
            f"line). Or a mapping by input, `{{attention_mask: ones, input_ids: {{random: [0, 1000]}}}}`, each {_FILL}: an array, an image, or raw data. "
            "`random`, which is also the default of inputs that a mapping leaves out, knows the inputs of language models: `input_ids` are below 1000, `attention_mask` is 1, `token_type_ids` are 0, `position_ids` count up."
        ),
    ] = "random"
    strings: Annotated[
        InputFill | None,
        Meta(
            description="How inputs of BYTES are filled that `fill` leaves random: `{length: 128}` for random strings of this length, `{value: TEXT}`, or `{strings: [a, b]}`. Default: random strings of 1 to 16 characters."
        ),
    ] = None
    shape: Annotated[
        dict[str, list[Size]],
        Meta(
            description="Full shapes by input: `{INPUT0: [1, 1000]}`. A shape with one size less than the input of a model that takes batches has `batch` put in front. A size may be a distribution, `{type: uniform, min: 8, max: 128}`; equal distributions give equal sizes within a request. Default: 1 for dynamic "
            "dimensions."
        ),
    ] = field(default_factory=dict)
    length: Annotated[
        Length | None,
        Meta(
            description="Size of all dynamic dimensions that `shape` leaves open, such as the sequence length of a language model, except for the batch: a number or a distribution."
        ),
    ] = None
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
    validate: Annotated[
        bool,
        Meta(
            description="Compare responses with the `validation_data` of the JSON file. One that differs is a failure, `wrong_output`. Floats may differ by 0.01 % (FP16 1 %, BF16 2 %) of the expected value, or of 1 if that is smaller than 1."
        ),
    ] = False
    inputs: Annotated[
        list[TensorInput], Meta(description="The inputs of the model. Default: from the server's metadata.")
    ] = field(default_factory=list)
    outputs: Annotated[
        list[TensorInput],
        Meta(description="The outputs of the model, for `validate`. Default: from the server's metadata."),
    ] = field(default_factory=list)

    @property
    def file(self) -> str | None:
        """The file or folder that holds all inputs."""
        return self.fill[1:] if isinstance(self.fill, str) and self.fill.startswith("@") else None


class Images(Section, tag_field="type", tag="images"):
    """Images for a model that takes them, prepared as `infer --image` does."""

    path: Annotated[
        str,
        Meta(
            description="An image, or a folder of images, which are sent in turn, by name. Of a large folder, the first 1 GiB of tensors is sent."
        ),
    ]
    batch: Annotated[Count, Meta(description="Images per request, for models that take batches.")] = 1
    scaling: Annotated[
        Literal["none", "inception", "vgg", "unit", "imagenet"] | None,
        Meta(
            description="Pixel values: `none` 0 to 255; `inception` -1 to 1; `vgg` minus the mean of each channel; `unit` 0 to 1; `imagenet` 0 to 1, minus the mean and divided by the standard deviation of ImageNet's channels, as torchvision does. Default: "
            "`inception` for floats, `none` for integers."
        ),
    ] = None
    crop: Annotated[
        str | None,
        Meta(
            description="`256:224` resizes the shorter side to 256 and cuts out the middle 224 × 224. Default: the image is resized to the model's size."
        ),
    ] = None
    input: Annotated[
        str | None, Meta(description="The input that takes the image. Default: the only one that an image fits.")
    ] = None
    layout: Annotated[
        Literal["NCHW", "NHWC"] | None,
        Meta(
            description="Whether the channels come first or last. Default: as the model's configuration or its shape says."
        ),
    ] = None
    shape: Annotated[
        dict[str, list[int]],
        Meta(
            description="Full shapes by input, including the batch, for dynamic dimensions: `{IMAGE: [1, 3, 224, 224]}`."
        ),
    ] = field(default_factory=dict)
    fill: Annotated[Fill, Meta(description="Other inputs of the model, as with `type: tensors`.")] = "random"
    inputs: Annotated[
        list[TensorInput], Meta(description="The inputs of the model. Default: from the server's metadata.")
    ] = field(default_factory=list)


class Messages(Section, tag_field="type", tag="messages"):
    """Messages for a gRPC method, used in turn: JSON or bytes."""

    messages: Annotated[
        list[Any], Meta(description="Requests as JSON; a list within the list is a stream of several messages.")
    ] = field(default_factory=list)
    path: Annotated[
        str | None, Meta(description="A file with one JSON request per line, or (`.bin`) one encoded message.")
    ] = None
