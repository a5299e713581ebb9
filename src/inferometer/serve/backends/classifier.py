"""The built-in image classifier: a small convolutional network in PyTorch with weights generated from a seed.

It runs on a fresh machine and computes the same everywhere. It is not trained, so its labels mean nothing. It takes
either `image`, a JPEG or PNG file that is decoded here, turned upright and resized to 224×224, or `pixels`, the red, green
and blue planes with values 0 .. 1, and returns `scores`, which add up to 1. An image takes one to two milliseconds on one
core, not counting decoding. Two `threads` are faster if two cores are idle, and many times slower if not.
"""

import hashlib
import io
import math
import warnings
from importlib import resources
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps

from inferometer.serve.backends import configured
from inferometer.serve.backends.torch import device_of, from_torch, to_torch, use_threads
from inferometer.serve.models.types import Loaded, Loading, Parameters, Refused, Tensors, reason
from inferometer.tensors import TensorSpec, to_numpy

IMAGE, PIXELS, SCORES = "image", "pixels", "scores"
SIZE = 224
_MOST_PIXELS = 64_000_000
"""Maximum size of an image: a PNG of a few kB can claim to be gigabytes."""
_FORMATS = ("JPEG", "PNG")
_POOLED = 4
_LAYERS = {
    "stem": (32, 3, 8, 8), "conv": (64, 32, 3, 3), "dense1": (1024, 64 * _POOLED * _POOLED), "dense2": (1024, 1024),
    "dense3": (1024, 1024), "last": (100, 1024),
}  # fmt: skip


def load(loading: Loading) -> Loaded:
    device, threads = device_of(loading), configured.whole(loading, "threads", 1)
    names = tuple(resources.files(__package__).joinpath("data/labels.txt").read_text(encoding="utf-8").splitlines())
    image, pixels = TensorSpec(IMAGE, "BYTES", (1,), True), TensorSpec(PIXELS, "FP32", (3, SIZE, SIZE), True)
    configured.declare(loading, [image, pixels], [TensorSpec(SCORES, "FP32", (len(names),))])
    for one in loading.config.output:
        one.label_filename = one.label_filename or "labels.txt"
    Image.preinit()  # imports its codecs, which should not delay the first request
    Image.MAX_IMAGE_PIXELS = _MOST_PIXELS // 2  # Pillow warns above this, and raises an error above twice as many
    warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)
    weights = {name: torch.from_numpy(array).to(device) for name, array in seeded().items()}

    def run(inputs: Tensors, parameters: Parameters) -> Tensors:
        use_threads(threads)
        with torch.inference_mode():
            return {SCORES: from_torch(SCORES, forward(weights, _pixels(inputs, device)))}

    return Loaded(run=run, labels={SCORES: names})


def seeded() -> dict[str, NDArray[np.float32]]:
    """Return uniformly distributed weights of variance 2 / fan-in, from a byte stream that no library version changes."""
    ends = np.cumsum([math.prod(shape) for shape in _LAYERS.values()])
    stream = np.frombuffer(hashlib.shake_256(b"inferometer classifier 1").digest(2 * int(ends[-1])), "<u2")
    found = {}
    for (name, shape), part in zip(_LAYERS.items(), np.split(stream, ends[:-1]), strict=True):
        values = part.astype(np.float32) / np.float32(32768) - np.float32(1)
        found[name] = (values * np.float32((6 / math.prod(shape[1:])) ** 0.5)).reshape(shape)
    # Scale pixels from 0 .. 1 to -2 .. 2, (x - 0.5) * 4, as part of the first layer.
    found["stem"] *= np.float32(4)
    found["last"] *= np.float32(2)  # so that scores differ
    found["bias"] = found["stem"].sum((1, 2, 3)) * np.float32(-0.5)
    return found


def forward(weights: dict[str, Any], pixels: Any) -> Any:
    """Map [N, 3, 224, 224] to [N, 100]; each row depends on its own input only."""
    f = torch.nn.functional
    # hardtanh is an odd function: what all images have in common does not grow per layer, as it would with relu.
    x = f.hardtanh(f.conv2d(pixels, weights["stem"], weights["bias"], stride=8))
    x = f.hardtanh(f.conv2d(x, weights["conv"], stride=2, padding=1))
    x = f.adaptive_avg_pool2d(x, _POOLED).flatten(1)
    for name in ("dense1", "dense2", "dense3"):
        x = f.hardtanh(f.layer_norm(f.linear(x, weights[name]), weights[name].shape[:1]))
    return f.linear(x, weights["last"]).softmax(1)


def _pixels(inputs: Tensors, device: Any) -> Any:
    if set(inputs) == {PIXELS}:
        return to_torch(inputs[PIXELS], device)
    if set(inputs) == {IMAGE}:
        images = [decoded(one) for one in to_numpy(inputs[IMAGE]).reshape(-1)]
        planes = torch.from_numpy(np.stack(images)).to(device).permute(0, 3, 1, 2)
        return planes.to(torch.float32).div_(255).contiguous()
    given = ", ".join(sorted(inputs)) or "none"
    raise Refused("INVALID_ARGUMENT", f"the classifier takes exactly one of '{IMAGE}' and '{PIXELS}' (got {given})")


def decoded(data: bytes) -> NDArray[np.uint8]:
    """Decode an image to 224 × 224 × 3 values 0 .. 255; raises Refused if it is not a valid image."""
    try:
        opened = Image.open(io.BytesIO(data), formats=_FORMATS)
        opened.draft("RGB", (2 * SIZE, 2 * SIZE))  # decodes a much larger JPEG at a reduced size, which is faster
        ImageOps.exif_transpose(opened, in_place=True)
        return np.asarray(opened.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BILINEAR), np.uint8)
    except Image.UnidentifiedImageError:
        what = f"the {len(data)} bytes are not a {' or '.join(_FORMATS)} image"
    except Exception as error:  # decoders raise all kinds of exceptions for damaged files
        what = f"the image is damaged or too large: {reason(error).message}"
    raise Refused("INVALID_ARGUMENT", f"input '{IMAGE}': {what}")
