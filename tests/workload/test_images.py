"""A run sends the images that `infer --image` sends, prepared as Triton's image client or torchvision would."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from inferometer import workload
from inferometer.config.data import Images, InputFill
from inferometer.errors import UserError
from inferometer.infer import inputs
from inferometer.infer.flags import InferFlags
from inferometer.probe.kserve import ModelFacts
from inferometer.tensors import Tensor, TensorSpec, to_numpy
from inferometer.wire.kserve.control import ModelConfig, ModelMetadata, ServerMetadata
from inferometer.workload import images

PIXELS = TensorSpec("IMAGE", "FP32", (-1, 3, 24, 20))
MASK = TensorSpec("attention_mask", "INT64", (-1, 4))
FILE = TensorSpec("IMAGE", "BYTES", (-1, 1))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three photos of different sizes, and a file that is not one."""
    rng = np.random.default_rng(0)
    for name, (width, height) in (("b.png", (40, 30)), ("a.jpg", (31, 57)), ("c.bmp", (20, 24))):
        Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8)).save(tmp_path / name)
    (tmp_path / "notes.txt").write_text("not an image")
    return tmp_path


def payloads(spec: Images, *metadata: TensorSpec, max_batch: int = 8, ids: Any = range(3)) -> list[tuple[Tensor, ...]]:
    done = images.complete(spec, metadata, max_batch, {})
    return [request.payload for request in workload.build(done, 0, ids)]  # type: ignore[misc]


def by_infer(*paths: Path, metadata: tuple[TensorSpec, ...] = (PIXELS,), **flags: Any) -> tuple[Tensor, ...]:
    facts = ModelFacts(
        ServerMetadata("s"), ModelMetadata("m", inputs=metadata), ModelConfig("m", max_batch_size=8, raw={})
    )
    made = inputs.build(InferFlags("grpc://x", images=tuple(map(str, paths)), **flags), facts)
    return tuple(one.tensor for one in made)


# --- the same as infer -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"scaling": "imagenet"}, {"scaling": "vgg"}, {"scaling": "unit"}])
def test_a_run_sends_what_infer_sends(folder: Path, settings: dict[str, str]) -> None:
    spec = Images(str(folder / "a.jpg"), **settings)  # type: ignore[arg-type]
    assert payloads(spec, PIXELS)[0] == by_infer(folder / "a.jpg", **settings)


def test_a_cropped_image_is_what_infer_sends(folder: Path) -> None:
    square = TensorSpec("IMAGE", "FP32", (-1, 3, -1, -1))
    spec = Images(str(folder / "a.jpg"), crop="32:24", scaling="imagenet")
    sent = payloads(spec, square)[0]
    assert sent[0].shape == (1, 3, 24, 24)
    assert sent == by_infer(folder / "a.jpg", metadata=(square,), crop="32:24", scaling="imagenet")


def test_the_images_of_a_folder_are_sent_in_turn_by_name(folder: Path) -> None:
    sent = payloads(Images(str(folder)), PIXELS, ids=range(4))
    assert sent == [by_infer(folder / name) for name in ("a.jpg", "b.png", "c.bmp", "a.jpg")]
    assert workload.distinct(images.complete(Images(str(folder)), [PIXELS], 8, {})) == 3
    sent = payloads(Images(str(folder), batch=2), PIXELS, ids=range(2))
    assert sent[0] == by_infer(folder / "a.jpg", folder / "b.png")
    assert sent[1] == by_infer(folder / "c.bmp", folder / "a.jpg")
    assert to_numpy(payloads(Images(str(folder)), FILE)[1][0]).item() == (folder / "b.png").read_bytes()


def test_other_inputs_are_generated_in_the_models_order(folder: Path) -> None:
    sent = payloads(Images(str(folder)), MASK, PIXELS)[0]
    assert [one.name for one in sent] == ["attention_mask", "IMAGE"]
    assert to_numpy(sent[0]).tolist() == [[1, 1, 1, 1]]
    filled = Images(str(folder), fill={"attention_mask": InputFill(value=3)})
    assert to_numpy(payloads(filled, MASK, PIXELS)[0][0]).tolist() == [[3, 3, 3, 3]]


def test_the_layout_comes_from_the_configuration_or_the_data(folder: Path) -> None:
    either = TensorSpec("IMAGE", "UINT8", (-1, 3, 5, 3))
    by_config = images.complete(Images(str(folder)), [either], 8, {"IMAGE": "FORMAT_NHWC"})
    by_data = images.complete(Images(str(folder), layout="NHWC"), [either], 8, {})
    assert workload.build(by_config, 0, [0]) == workload.build(by_data, 0, [0])
    assert workload.build(by_config, 0, [0]) != workload.build(
        images.complete(Images(str(folder)), [either], 8, {}), 0, [0]
    )


def test_the_digest_depends_on_the_images_and_not_on_their_folder(folder: Path, tmp_path_factory: Any) -> None:
    other = tmp_path_factory.mktemp("other")
    for name in ("a.jpg", "b.png", "c.bmp"):
        (other / name).write_bytes((folder / name).read_bytes())

    def digest(path: Path) -> str:
        return workload.digest(images.complete(Images(str(path)), [PIXELS], 8, {}), 0)

    before = digest(folder)
    assert digest(other) == before
    images._paths.cache_clear()
    (other / "c.bmp").unlink()
    assert digest(other) != before


# --- the arithmetic of torchvision -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "size"), [("a.jpg", (31, 57)), ("b.png", (40, 30))])
def test_imagenet_is_torchvisions_resize_crop_and_normalize(folder: Path, name: str, size: tuple[int, int]) -> None:
    """Resize(32), CenterCrop(24), ToTensor() and Normalize(mean, std), written out."""
    width, height = size
    resized = (32, int(32 * height / width)) if width <= height else (int(32 * width / height), 32)
    image = Image.open(folder / name).convert("RGB").resize(resized, Image.Resampling.BILINEAR)
    left, top = round((resized[0] - 24) / 2), round((resized[1] - 24) / 2)
    pixels = np.asarray(image)[top : top + 24, left : left + 24]
    tensor = pixels.transpose(2, 0, 1).astype(np.float32) / 255
    mean, std = np.float32([0.485, 0.456, 0.406]), np.float32([0.229, 0.224, 0.225])
    expected = (tensor - mean[:, None, None]) / std[:, None, None]

    spec = TensorSpec("IMAGE", "FP32", (-1, 3, 24, 24))
    (sent,) = payloads(Images(str(folder / name), crop="32:24", scaling="imagenet"), spec)[0]
    assert np.array_equal(to_numpy(sent)[0], expected)


def test_unit_is_a_fraction_of_255(folder: Path) -> None:
    (sent,) = payloads(Images(str(folder / "c.bmp"), scaling="unit"), PIXELS)[0]
    expected = np.asarray(Image.open(folder / "c.bmp")).transpose(2, 0, 1).astype(np.float32) / 255
    assert np.array_equal(to_numpy(sent)[0], expected)


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "metadata", "words"),
    [
        ({"path": "{}/empty"}, (PIXELS,), ("data.path", "there are no images in the folder", ".png")),
        ({"path": "{}/nowhere.png"}, (PIXELS,), ("data.path", "No such file")),
        ({"path": "{}/notes.txt"}, (PIXELS,), ("data.path", "is not an image")),
        ({"crop": "224"}, (PIXELS,), ("data.crop", "not of the form RESIZE:SIZE", "256:224")),
        ({"crop": "224:256"}, (PIXELS,), ("data.crop", "at most RESIZE")),
        ({"crop": "32:24"}, (PIXELS,), ("data.crop", "24×24 is cut out, but IMAGE takes 20×24 pixels")),
        (
            {"scaling": "unit"},
            (TensorSpec("IMAGE", "UINT8", (-1, 3, 4, 4)),),
            ("data.scaling", "between 0 and 1", "none"),
        ),
        ({"input": "IMG"}, (PIXELS, MASK), ("data.input", "no input IMG", "did you mean IMAGE?")),
        ({"fill": {"mask": "ones"}}, (PIXELS, MASK), ("data.fill", "no input mask", "attention_mask")),
        ({"shape": {"IMG": [1]}}, (PIXELS, MASK), ("data.shape", "no input IMG")),
        ({}, (MASK,), ("which is not that of an image",)),
        ({}, (MASK, TensorSpec("Y", "FP32", (-1, 5))), ("it is not clear which one the image is for",)),
        ({"batch": 9}, (PIXELS,), ("data.batch is 9, but the model takes at most 8",)),
    ],
)
def test_images_that_do_not_fit_are_errors(
    folder: Path, settings: dict[str, Any], metadata: tuple[TensorSpec, ...], words: tuple[str, ...]
) -> None:
    (folder / "empty").mkdir()
    path = settings.pop("path", "{}/a.jpg").format(folder)
    with pytest.raises(UserError) as caught:
        images.complete(Images(path, **settings), metadata, 8, {})
    for word in words:
        assert word in str(caught.value)


def test_images_of_different_sizes_are_not_a_batch(folder: Path) -> None:
    with pytest.raises(UserError, match="different sizes"):
        payloads(Images(str(folder), batch=2), TensorSpec("IMAGE", "FP32", (-1, 3, -1, -1)))
