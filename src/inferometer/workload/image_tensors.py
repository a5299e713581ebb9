"""Images as a model's input: decoded, resized, laid out, scaled. The same for `data: {type: images}` and for `infer --image`.

Size and channel order are those of the model's input; a height or width of -1 takes the image's own. Alpha is dropped and a
photo turned upright. Without a crop, the aspect ratio is not preserved (bilinear resizing). With a crop such as 256:224, the
shorter side is resized to 256 and the middle 224 × 224 are cut out, as torchvision's Resize(256) and CenterCrop(224) do. An
input of BYTES gets the file unchanged. Several images are sent as a batch. Pixel values are scaled as Triton's image client
(none, inception, vgg) or torchvision (unit, imagenet) does it:

    none        0 .. 255                          the default for whole numbers
    inception   x / 127.5 - 1: -1 .. 1            the default for floats
    vgg         x - (123, 117, 104), grey x - 128
    unit        x / 255: 0 .. 1                   ToTensor
    imagenet    (x / 255 - mean) / std            ToTensor and Normalize with the mean and std of ImageNet's channels
"""

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer import tensors
from inferometer.errors import UserError
from inferometer.tensors import Tensor, TensorSpec, shown
from inferometer.workload.input_files import read_bytes

SCALINGS = ("none", "inception", "vgg", "unit", "imagenet")
CHANNELS = {1: "L", 3: "RGB"}
_VGG = {1: (128.0,), 3: (123.0, 117.0, 104.0)}
_IMAGENET_MEAN = {1: (0.449,), 3: (0.485, 0.456, 0.406)}
_IMAGENET_STD = {1: (0.226,), 3: (0.229, 0.224, 0.225)}
"""Of one channel: the averages of the three."""
_OF_FRACTIONS = {"inception": "between -1 and 1", "unit": "between 0 and 1", "imagenet": "between -3 and 3"}
"""Scalings that need floats, and the numbers that they make."""
_RANK = 3
_NCHW, _NHWC = "NCHW", "NHWC"
_LOOKS_LIKE_IMAGE = re.compile(r"image|img|photo|picture|jpe?g|png", re.IGNORECASE)
_CROP = re.compile(r"(\d+):(\d+)")

Crop = tuple[int, int]
"""The size of the shorter side after resizing, and that of the square that is cut out."""


def crop_of(text: str) -> Crop:
    """Parse `256:224`."""
    found = _CROP.fullmatch(text.strip())
    resize, size = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 0 < size <= resize:
        raise UserError(
            f"{text!r:.60} is not of the form RESIZE:SIZE", "write 256:224; SIZE is at most RESIZE", "data.crop"
        )
    return resize, size


class ImagePlan(msgspec.Struct, frozen=True):
    """How images become a tensor; a height or width of -1 is the image's own."""

    layout: str
    channels: int
    height: int
    width: int
    batched: bool


class Preparation(msgspec.Struct, frozen=True):
    """What is done to images besides what the model's input requires."""

    scaling: str | None = None
    """None: inception for floats, none for whole numbers."""
    crop: Crop | None = None


AS_DEFAULT = Preparation()


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
        "an image has 1 or 3 channels, first or last: give {data.shape}, such as [1, 3, 224, 224], or the tensor itself",
    )


def _no_batch(spec: TensorSpec, count: int) -> UserError:
    return UserError(
        f"{count} images per request were given, but {spec.name} {shown(spec.shape)} takes one image per request",
        "give one image",
        "data.path",
    )


def to_tensor(
    paths: Sequence[str], spec: TensorSpec, form: str = "", preparation: Preparation = AS_DEFAULT
) -> tuple[Tensor, str]:
    """The files' images as the input expects them, and a description of what was done to them."""
    if spec.datatype == "BYTES":
        return _encoded(paths, spec)
    layout = plan(spec, form, len(paths))
    kind = tensors.datatype_of(spec.name, spec.datatype).dtype
    is_float = kind is None or kind.kind == "f"
    scaling = preparation.scaling or ("inception" if is_float else "none")
    if scaling in _OF_FRACTIONS and not is_float:
        raise UserError(
            f"{scaling} makes numbers {_OF_FRACTIONS[scaling]}, and the model expects {spec.datatype}",
            "use none",
            "data.scaling",
        )
    if preparation.crop is not None:
        _check_crop(preparation.crop[1], layout, spec)
    images = [_pixels(path, layout, preparation.crop) for path in paths]
    pixels = images[0][0]
    if any(other.shape != pixels.shape for other, _ in images):
        raise UserError(
            "the images have different sizes",
            f"give {{data.shape}} for {spec.name}, or {{data.crop}}, or images of one size",
            "data.path",
        )
    array = np.concatenate([laid_out(scaled(one, scaling), layout) for one, _ in images])
    source = images[0][1] if len(images) == 1 else f"{len(images)} images"
    try:
        made = tensors.from_numpy(spec.name, array if is_float else array.astype(np.int64), spec.datatype)
    except UserError as error:
        raise UserError(error.what, "try another {data.scaling}") from None
    cropped = f" cropped {preparation.crop[0]}:{preparation.crop[1]}" if preparation.crop else ""
    resized = f"{cropped} to {pixels.shape[1]}×{pixels.shape[0]} {CHANNELS[layout.channels]}"
    return made, f"{source}{resized}, {layout.layout}, scaling {scaling}"


def _check_crop(size: int, layout: ImagePlan, spec: TensorSpec) -> None:
    """Raise UserError when the model takes another size than what is cut out."""
    wanted = (layout.height, layout.width)
    if any(one not in (-1, size) for one in wanted):
        raise UserError(
            f"a square of {size}×{size} is cut out, but {spec.name} takes {layout.width}×{layout.height} pixels",
            f"write RESIZE:{layout.height}" if wanted[0] == wanted[1] else "leave it out: the image is resized",
            "data.crop",
        )


def scaled(pixels: NDArray[np.uint8], scaling: str) -> NDArray[np.float32]:
    """Scale pixels (height × width × channels, 0 .. 255)."""
    array, channels = pixels.astype(np.float32), pixels.shape[2]
    if scaling == "inception":
        return array / np.float32(127.5) - np.float32(1)
    if scaling == "vgg":
        return array - np.array(_VGG[channels], np.float32)
    if scaling in ("unit", "imagenet"):
        array = array / np.float32(255)
    if scaling == "imagenet":
        mean, std = np.array(_IMAGENET_MEAN[channels], np.float32), np.array(_IMAGENET_STD[channels], np.float32)
        return (array - mean) / std
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
            "give the tensor itself",
        )
    array = np.empty(count, object)
    array[:] = [read_bytes(path, "data.path") for path in paths]
    source = Path(paths[0]).name if count == 1 else f"{count} images"
    return tensors.from_numpy(spec.name, array.reshape(shape), "BYTES"), f"{source}, unchanged"


# --- the file --------------------------------------------------------------------------------------------------------


def _pixels(path: str, layout: ImagePlan, crop: Crop | None) -> tuple[NDArray[np.uint8], str]:
    """The pixels (height × width × channels), resized, and a description of the file."""
    try:
        from PIL import Image, ImageOps, UnidentifiedImageError  # noqa: PLC0415 - an extra
    except ImportError:
        raise UserError(
            "images need Pillow, which is not installed", "pip install 'inferometer[image]'", "data.path"
        ) from None
    read_bytes(path, "data.path")  # for the error message of an unreadable file
    try:
        with Image.open(Path(path).expanduser()) as opened:
            opened.load()
            source = f"{Path(path).name}, {opened.width}×{opened.height} {opened.mode}"
            image = _eight_bits(ImageOps.exif_transpose(opened), Image).convert(CHANNELS[layout.channels])
            if crop is not None:
                image = _cropped(image, *crop, Image.Resampling.BILINEAR)
            size = (
                layout.width if layout.width > 0 else image.width,
                layout.height if layout.height > 0 else image.height,
            )
            if size != image.size:
                image = image.resize(size, Image.Resampling.BILINEAR)
    except UnidentifiedImageError:
        raise UserError(f"{path} is not an image in a format that Pillow supports", "give a PNG or JPEG", "data.path") from None  # fmt: skip
    except (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError) as error:
        raise UserError(f"{path}: the image is broken: {error}", "give another file", "data.path") from None
    array = np.asarray(image, np.uint8)
    return array.reshape(*array.shape[:2], layout.channels), source


def _cropped(image: Any, resize: int, size: int, bilinear: Any) -> Any:
    """Resize the shorter side to `resize` and cut out the middle, with torchvision's rounding."""
    width, height = image.size
    if min(width, height) != resize:
        longer = int(resize * max(width, height) / min(width, height))
        image = image.resize((resize, longer) if width <= height else (longer, resize), bilinear)
    left, top = round((image.width - size) / 2.0), round((image.height - size) / 2.0)
    return image.crop((left, top, left + size, top + size))


def _eight_bits(image: Any, pillow: Any) -> Any:
    """Scale 16-bit grey values to 8 bits: Pillow would clip all above 255 to white."""
    if not image.mode.startswith("I"):
        return image
    values = np.clip(np.asarray(image).astype(np.int64), 0, 65_535) >> 8
    return pillow.fromarray(values.astype(np.uint8))


def formats(config: Mapping[str, Any]) -> dict[str, str]:
    """The format of each input in a model's configuration."""
    return {str(spec.get("name")): str(spec.get("format", "")) for spec in config.get("input") or ()}


# --- which input, which files ----------------------------------------------------------------------------------------


def input_for(
    left: Sequence[TensorSpec], specs: Sequence[TensorSpec], formats: Mapping[str, str], optional: Collection[str]
) -> TensorSpec:
    """The input for the image: the only one that is `left`, or the only one that an image fits.

    If both the pixels and the file are optional inputs, the file is given: the model knows best how to decode it.
    """
    suitable = [spec for spec in left if is_image(spec, formats.get(spec.name, ""))]
    byte_inputs = [spec for spec in left if spec.datatype == "BYTES"]
    image_files = [spec for spec in byte_inputs if spec.name in optional and _LOOKS_LIKE_IMAGE.search(spec.name)]
    if all(spec.name in optional for spec in suitable) and len(image_files) == 1:
        return image_files[0]
    chosen = suitable or byte_inputs
    if len(left) == 1:
        return left[0]
    if len(chosen) != 1:
        listed = ", ".join(f"{spec.name} ({spec.datatype} {shown(spec.shape)})" for spec in specs)
        raise UserError(
            f"the model's inputs are {listed or 'none'}: it is not clear which one the image is for",
            "give the others with {data.fill}",
            "data.path",
        )
    return chosen[0]


SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")


def paths_of(path: str) -> list[str]:
    """The image at `path`, or those in the folder, by name."""
    folder = Path(path).expanduser()
    if not folder.is_dir():
        return [path]
    found = sorted(str(one) for one in folder.iterdir() if one.suffix.lower() in SUFFIXES and one.is_file())
    if not found:
        raise UserError(
            f"there are no images in the folder {path}",
            f"it takes files that end in {', '.join(SUFFIXES)}",
            "data.path",
        )
    return found
