"""An image as a model's input: decoded, resized, laid out, scaled.

What the model says decides: the sizes and the place of the channels are its input's, a -1 for height or width takes the
image's own. Alpha is dropped and a photo turned upright; the aspect ratio is not kept (bilinear). An input of BYTES gets
the file as it is. Numbers are scaled as Triton's image client does it:

    none        0 .. 255                          the default for whole numbers
    inception   x / 127.5 - 1: -1 .. 1            the default for floats
    vgg         x - (123, 117, 104), grey x - 128
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer import tensors
from inferometer.errors import UserError
from inferometer.infer import files
from inferometer.tensors import Tensor, TensorSpec, shown

SCALINGS = ("none", "inception", "vgg")
CHANNELS = {1: "L", 3: "RGB"}
_VGG = {1: (128.0,), 3: (123.0, 117.0, 104.0)}
_RANK = 3
_NCHW, _NHWC = "NCHW", "NHWC"


class ImagePlan(msgspec.Struct, frozen=True):
    """How an image becomes a tensor; a height or width of -1 is the image's own."""

    layout: str
    channels: int
    height: int
    width: int
    batched: bool


def plan(spec: TensorSpec, form: str = "") -> ImagePlan:
    """From the input's shape and, where the model's configuration says it, its format (FORMAT_NCHW, FORMAT_NHWC)."""
    batched = len(spec.shape) == _RANK + 1
    sizes = spec.shape[1:] if batched else spec.shape
    if len(sizes) != _RANK or (batched and spec.shape[0] not in (-1, 1)):
        raise _no_image(spec)
    layout = {"FORMAT_NCHW": _NCHW, "FORMAT_NHWC": _NHWC}.get(form) or _layout(spec, sizes)
    channels, height, width = sizes if layout == _NCHW else (sizes[2], sizes[0], sizes[1])
    channels = 3 if channels == -1 else channels
    if channels not in CHANNELS:
        raise _no_image(spec)
    return ImagePlan(layout, channels, height, width, batched)


def is_image(spec: TensorSpec, form: str = "") -> bool:
    """Could an image go there?"""
    try:
        plan(spec, form)
    except UserError:
        return False
    return spec.datatype != "BYTES"


def _layout(spec: TensorSpec, sizes: tuple[int, ...]) -> str:
    """The channels are where a 3 or a 1 is; in doubt they are first."""
    if sizes[0] in CHANNELS:
        return _NCHW
    if sizes[2] in CHANNELS:
        return _NHWC
    raise _no_image(spec)


def _no_image(spec: TensorSpec) -> UserError:
    return UserError(
        f"tensor {spec.name}: the model expects the shape {shown(spec.shape)}, which is no image's",
        "an image has 1 or 3 channels, first or last: give --shape NAME=1,3,224,224, or the tensor itself with --input",
    )


def to_tensor(path: str, spec: TensorSpec, scaling: str | None = None, form: str = "") -> tuple[Tensor, str]:
    """The file's image as the input asks for it, and what was done to it in words."""
    if spec.datatype == "BYTES":
        return _encoded(path, spec)
    wanted = plan(spec, form)
    kind = tensors.datatype_of(spec.name, spec.datatype).dtype
    is_float = kind is None or kind.kind == "f"
    scaling = scaling or ("inception" if is_float else "none")
    if scaling == "inception" and not is_float:
        raise UserError(
            f"--scaling inception makes numbers between -1 and 1, and the model expects {spec.datatype}",
            "use --scaling none",
        )
    pixels, source = _pixels(path, wanted)
    array = laid_out(scaled(pixels, scaling), wanted)
    try:
        made = tensors.from_numpy(spec.name, array if is_float else array.astype(np.int64), spec.datatype)
    except UserError as error:
        raise UserError(error.what, "try another --scaling") from None
    resized = f"to {pixels.shape[1]}×{pixels.shape[0]} {CHANNELS[wanted.channels]}"
    return made, f"{source} {resized}, {wanted.layout}, scaling {scaling}"


def scaled(pixels: NDArray[np.uint8], scaling: str) -> NDArray[np.float32]:
    """Height × width × channels of 0 .. 255, as `scaling` has them."""
    array = pixels.astype(np.float32)
    if scaling == "inception":
        return array / np.float32(127.5) - np.float32(1)
    if scaling == "vgg":
        return array - np.array(_VGG[pixels.shape[2]], np.float32)
    return array


def laid_out(array: NDArray[Any], wanted: ImagePlan) -> NDArray[Any]:
    moved = array.transpose(2, 0, 1) if wanted.layout == _NCHW else array
    return np.ascontiguousarray(moved[np.newaxis] if wanted.batched else moved)


def _encoded(path: str, spec: TensorSpec) -> tuple[Tensor, str]:
    shape = tuple(1 if size == -1 else size for size in spec.shape)
    if tensors.elements(shape) != 1:
        raise UserError(
            f"tensor {spec.name}: the model expects {shown(spec.shape)} elements of BYTES; one image was given",
            "give the tensor itself with --input",
        )
    data = files.read(path, "--image")
    return tensors.from_numpy(
        spec.name, np.array([data], object).reshape(shape), "BYTES"
    ), f"{Path(path).name}, as it is"


# --- the file --------------------------------------------------------------------------------------------------------


def _pixels(path: str, wanted: ImagePlan) -> tuple[NDArray[np.uint8], str]:
    """Height × width × channels, of the size wanted, and what the file holds in words."""
    try:
        from PIL import Image, ImageOps, UnidentifiedImageError  # noqa: PLC0415 - an extra
    except ImportError:
        raise UserError(
            "--image needs Pillow, which is not installed", "pip install 'inferometer[image]', or give --input"
        ) from None
    files.read(path, "--image")  # what cannot be read says so in our words
    try:
        with Image.open(Path(path).expanduser()) as opened:
            opened.load()
            source = f"{Path(path).name}, {opened.width}×{opened.height} {opened.mode}"
            image = _eight_bits(ImageOps.exif_transpose(opened), Image).convert(CHANNELS[wanted.channels])
            size = (
                wanted.width if wanted.width > 0 else image.width,
                wanted.height if wanted.height > 0 else image.height,
            )
            if size != image.size:
                image = image.resize(size, Image.Resampling.BILINEAR)
    except UnidentifiedImageError:
        raise UserError(f"--image: {path} is not an image, or of a kind that Pillow does not know", "give a PNG or JPEG") from None  # fmt: skip
    except (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError) as error:
        raise UserError(f"--image: {path}: the image is broken: {error}", "give another file") from None
    array = np.asarray(image, np.uint8)
    return array.reshape(*array.shape[:2], wanted.channels), source


def _eight_bits(image: Any, pillow: Any) -> Any:
    """Grey values of 16 bits, of which Pillow would keep the lowest 255 and call the rest white."""
    if not image.mode.startswith("I"):
        return image
    values = np.clip(np.asarray(image).astype(np.int64), 0, 65_535) >> 8
    return pillow.fromarray(values.astype(np.uint8))


def formats(config: Mapping[str, Any]) -> dict[str, str]:
    """What a model's configuration says of each input's format."""
    return {str(one.get("name")): str(one.get("format", "")) for one in config.get("input") or ()}
