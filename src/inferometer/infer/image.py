"""Images as a model's input: decoded, resized, laid out, scaled.

Size and channel order are those of the model's input; a height or width of -1 takes the image's own. Alpha is dropped and a
photo turned upright; the aspect ratio is not preserved (bilinear resizing). An input of BYTES gets the file unchanged. Several
images are sent as a batch. Pixel values are scaled as Triton's image client does it:

    none        0 .. 255                          the default for whole numbers
    inception   x / 127.5 - 1: -1 .. 1            the default for floats
    vgg         x - (123, 117, 104), grey x - 128
"""

from collections.abc import Mapping, Sequence
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
    """How images become a tensor; a height or width of -1 is the image's own."""

    layout: str
    channels: int
    height: int
    width: int
    batched: bool


def plan(spec: TensorSpec, form: str = "", count: int = 1) -> ImagePlan:
    """Plan for `count` images, by the input's shape and by its format (FORMAT_NCHW, FORMAT_NHWC) if the configuration has one."""
    batched = len(spec.shape) == _RANK + 1
    sizes = spec.shape[1:] if batched else spec.shape
    if len(sizes) != _RANK or (batched and spec.shape[0] not in (-1, 1, count)):
        raise _not_an_image(spec)
    if count > 1 and (not batched or spec.shape[0] == 1):
        raise _no_batch(spec, count)
    layout = {"FORMAT_NCHW": _NCHW, "FORMAT_NHWC": _NHWC}.get(form) or _layout(spec, sizes)
    channels, height, width = sizes if layout == _NCHW else (sizes[2], sizes[0], sizes[1])
    channels = 3 if channels == -1 else channels
    if channels not in CHANNELS:
        raise _not_an_image(spec)
    return ImagePlan(layout, channels, height, width, batched)


def is_image(spec: TensorSpec, form: str = "") -> bool:
    """Whether an image fits this input."""
    try:
        plan(spec, form)
    except UserError:
        return False
    return spec.datatype != "BYTES"


def _layout(spec: TensorSpec, sizes: tuple[int, ...]) -> str:
    """The dimension of size 3 or 1 is the channels; if both could be, the first."""
    if sizes[0] in CHANNELS:
        return _NCHW
    if sizes[2] in CHANNELS:
        return _NHWC
    raise _not_an_image(spec)


def _not_an_image(spec: TensorSpec) -> UserError:
    return UserError(
        f"tensor {spec.name}: the model expects the shape {shown(spec.shape)}, which is not that of an image",
        "an image has 1 or 3 channels, first or last: give --shape NAME=1,3,224,224, or the tensor itself with --input",
    )


def _no_batch(spec: TensorSpec, count: int) -> UserError:
    return UserError(
        f"--image: {count} images were given, but {spec.name} {shown(spec.shape)} takes one image per request",
        "give one --image",
    )


def to_tensor(paths: Sequence[str], spec: TensorSpec, scaling: str | None = None, form: str = "") -> tuple[Tensor, str]:
    """The files' images as the input expects them, and a description of what was done to them."""
    if spec.datatype == "BYTES":
        return _encoded(paths, spec)
    layout = plan(spec, form, len(paths))
    kind = tensors.datatype_of(spec.name, spec.datatype).dtype
    is_float = kind is None or kind.kind == "f"
    scaling = scaling or ("inception" if is_float else "none")
    if scaling == "inception" and not is_float:
        raise UserError(
            f"--scaling inception makes numbers between -1 and 1, and the model expects {spec.datatype}",
            "use --scaling none",
        )
    images = [_pixels(path, layout) for path in paths]
    pixels = images[0][0]
    if any(other.shape != pixels.shape for other, _ in images):
        raise UserError(
            "--image: the images have different sizes", f"give --shape {spec.name}=..., or images of one size"
        )
    array = np.concatenate([laid_out(scaled(one, scaling), layout) for one, _ in images])
    source = images[0][1] if len(images) == 1 else f"{len(images)} images"
    try:
        made = tensors.from_numpy(spec.name, array if is_float else array.astype(np.int64), spec.datatype)
    except UserError as error:
        raise UserError(error.what, "try another --scaling") from None
    resized = f"to {pixels.shape[1]}×{pixels.shape[0]} {CHANNELS[layout.channels]}"
    return made, f"{source} {resized}, {layout.layout}, scaling {scaling}"


def scaled(pixels: NDArray[np.uint8], scaling: str) -> NDArray[np.float32]:
    """Scale pixels (height × width × channels, 0 .. 255)."""
    array = pixels.astype(np.float32)
    if scaling == "inception":
        return array / np.float32(127.5) - np.float32(1)
    if scaling == "vgg":
        return array - np.array(_VGG[pixels.shape[2]], np.float32)
    return array


def laid_out(array: NDArray[Any], layout: ImagePlan) -> NDArray[Any]:
    """Put the channels where the input has them, and add the batch dimension."""
    moved = array.transpose(2, 0, 1) if layout.layout == _NCHW else array
    return np.ascontiguousarray(moved[np.newaxis] if layout.batched else moved)


def _encoded(paths: Sequence[str], spec: TensorSpec) -> tuple[Tensor, str]:
    """The files themselves, each an element of BYTES; the first open dimension is the batch."""
    count, batch = len(paths), spec.shape.index(-1) if -1 in spec.shape else None
    shape = tuple(1 if size == -1 else size for size in spec.shape)
    if batch is not None:
        shape = (*shape[:batch], count, *shape[batch + 1 :])
    if tensors.elements(shape) != count:
        if count > 1:
            raise _no_batch(spec, count)
        raise UserError(
            f"tensor {spec.name}: the model expects {shown(spec.shape)} elements of BYTES; one image was given",
            "give the tensor itself with --input",
        )
    array = np.empty(count, object)
    array[:] = [files.read(path, "--image") for path in paths]
    source = Path(paths[0]).name if count == 1 else f"{count} images"
    return tensors.from_numpy(spec.name, array.reshape(shape), "BYTES"), f"{source}, unchanged"


# --- the file --------------------------------------------------------------------------------------------------------


def _pixels(path: str, layout: ImagePlan) -> tuple[NDArray[np.uint8], str]:
    """The pixels (height × width × channels), resized, and a description of the file."""
    try:
        from PIL import Image, ImageOps, UnidentifiedImageError  # noqa: PLC0415 - an extra
    except ImportError:
        raise UserError(
            "--image needs Pillow, which is not installed", "pip install 'inferometer[image]', or give --input"
        ) from None
    files.read(path, "--image")  # for the error message of an unreadable file
    try:
        with Image.open(Path(path).expanduser()) as opened:
            opened.load()
            source = f"{Path(path).name}, {opened.width}×{opened.height} {opened.mode}"
            image = _eight_bits(ImageOps.exif_transpose(opened), Image).convert(CHANNELS[layout.channels])
            size = (
                layout.width if layout.width > 0 else image.width,
                layout.height if layout.height > 0 else image.height,
            )
            if size != image.size:
                image = image.resize(size, Image.Resampling.BILINEAR)
    except UnidentifiedImageError:
        raise UserError(f"--image: {path} is not an image in a format that Pillow supports", "give a PNG or JPEG") from None  # fmt: skip
    except (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError) as error:
        raise UserError(f"--image: {path}: the image is broken: {error}", "give another file") from None
    array = np.asarray(image, np.uint8)
    return array.reshape(*array.shape[:2], layout.channels), source


def _eight_bits(image: Any, pillow: Any) -> Any:
    """Scale 16-bit grey values to 8 bits: Pillow would clip all above 255 to white."""
    if not image.mode.startswith("I"):
        return image
    values = np.clip(np.asarray(image).astype(np.int64), 0, 65_535) >> 8
    return pillow.fromarray(values.astype(np.uint8))


def formats(config: Mapping[str, Any]) -> dict[str, str]:
    """The format of each input in a model's configuration."""
    return {str(spec.get("name")): str(spec.get("format", "")) for spec in config.get("input") or ()}
