"""Images as model inputs, against numbers worked out by hand."""

import builtins
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from inferometer.errors import UserError
from inferometer.tensors import TensorSpec, to_numpy
from inferometer.workload import image_tensors as image
from inferometer.workload.image_tensors import ImagePlan, Preparation

# Two rows of three pixels: red, green, blue; black, grey 51, white.
PIXELS = np.array([[[255, 0, 0], [0, 255, 0], [0, 0, 255]], [[0, 0, 0], [51, 51, 51], [255, 255, 255]]], np.uint8)


@pytest.fixture
def picture(tmp_path: Path) -> str:
    return saved(tmp_path, Image.fromarray(PIXELS))


def saved(folder: Path, made: Image.Image, name: str = "image.png", **more: Any) -> str:
    made.save(folder / name, **more)
    return str(folder / name)


def array(path: str, datatype: str, shape: tuple[int, ...], scaling: str | None = None, form: str = "") -> Any:
    return to_numpy(image.to_tensor([path], TensorSpec("X", datatype, shape), form, Preparation(scaling))[0])


# --- layout ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "form", "expected"),
    [
        ((3, 224, 200), "", ImagePlan("NCHW", 3, 224, 200, False)),
        ((-1, 3, 224, 200), "", ImagePlan("NCHW", 3, 224, 200, True)),
        ((1, 1, 28, 28), "", ImagePlan("NCHW", 1, 28, 28, True)),
        ((224, 200, 3), "", ImagePlan("NHWC", 3, 224, 200, False)),
        ((-1, 224, 200, 1), "", ImagePlan("NHWC", 1, 224, 200, True)),
        ((3, -1, -1), "", ImagePlan("NCHW", 3, -1, -1, False)),
        ((-1, -1, -1, 3), "", ImagePlan("NHWC", 3, -1, -1, True)),
        ((-1, -1, -1, -1), "FORMAT_NHWC", ImagePlan("NHWC", 3, -1, -1, True)),
        ((3, 10, 3), "FORMAT_NHWC", ImagePlan("NHWC", 3, 3, 10, False)),
        ((3, 10, 3), "FORMAT_NONE", ImagePlan("NCHW", 3, 10, 3, False)),
    ],
)
def test_the_channels_are_where_the_model_says(shape: tuple[int, ...], form: str, expected: ImagePlan) -> None:
    assert image.plan(TensorSpec("X", "FP32", shape), form) == expected


@pytest.mark.parametrize(
    ("shape", "form"),
    [((16,), ""), ((-1, 16), ""), ((4, 8, 8), ""), ((-1, -1, -1), ""), ((8, 3, 8, 8), ""), ((1, 1, 3, 8, 8), ""),
     ((4, 8, 8), "FORMAT_NCHW")],
)  # fmt: skip
def test_shapes_that_are_not_images_are_refused(shape: tuple[int, ...], form: str) -> None:
    with pytest.raises(UserError, match="which is not that of an image") as caught:
        image.plan(TensorSpec("X", "FP32", shape), form)
    assert ", ".join(map(str, shape)) in caught.value.what


def test_nchw_and_nhwc_hold_the_same_pixels_in_another_order(picture: str) -> None:
    assert array(picture, "UINT8", (3, 2, 3)).tolist() == [
        [[255, 0, 0], [0, 51, 255]],
        [[0, 255, 0], [0, 51, 255]],
        [[0, 0, 255], [0, 51, 255]],
    ]
    assert array(picture, "UINT8", (2, 3, 3), form="FORMAT_NHWC").tolist() == PIXELS.tolist()


def test_a_batch_dimension_is_added(picture: str) -> None:
    assert array(picture, "UINT8", (-1, 3, 2, 3)).shape == (1, 3, 2, 3)
    assert array(picture, "UINT8", (1, 2, 3, 3), form="FORMAT_NHWC").tolist() == [PIXELS.tolist()]


def test_open_sizes_take_the_images_own(picture: str) -> None:
    assert array(picture, "UINT8", (3, -1, -1)).shape == (3, 2, 3)
    assert array(picture, "UINT8", (-1, -1, -1, 3)).shape == (1, 2, 3, 3)


def test_height_comes_before_width_in_both_layouts(picture: str) -> None:
    assert array(picture, "UINT8", (3, 7, 5)).shape == (3, 7, 5)
    assert array(picture, "UINT8", (7, 5, 3)).shape == (7, 5, 3)


def test_an_image_of_one_colour_stays_so_when_resized(tmp_path: Path) -> None:
    path = saved(tmp_path, Image.new("RGB", (9, 4), (10, 20, 30)))
    assert array(path, "UINT8", (3, 5, 7)).reshape(3, -1).tolist() == [[10] * 35, [20] * 35, [30] * 35]


# --- scaling ---------------------------------------------------------------------------------------------------------


def test_inception_goes_from_minus_1_to_1(picture: str) -> None:
    found = array(picture, "FP32", (3, 2, 3), "inception")
    assert found[0].tolist() == [[1, -1, -1], [-1, pytest.approx(-0.6), 1]]


def test_vgg_subtracts_the_means(picture: str) -> None:
    assert array(picture, "FP32", (3, 2, 3), "vgg")[:, 0, 0].tolist() == [132, -117, -104]
    assert array(picture, "FP32", (3, 2, 3), "vgg")[:, 1, 1].tolist() == [-72, -66, -53]


def test_vgg_of_grey_subtracts_128(picture: str) -> None:
    assert array(picture, "FP32", (1, 2, 3), "vgg")[0, 1].tolist() == [-128, -77, 127]


def test_none_leaves_0_to_255(picture: str) -> None:
    assert array(picture, "FP32", (3, 2, 3), "none")[0].tolist() == [[255, 0, 0], [0, 51, 255]]


@pytest.mark.parametrize(
    ("datatype", "scaling"), [("FP32", "inception"), ("FP16", "inception"), ("BF16", "inception"), ("FP64", "inception"),
                              ("UINT8", "none"), ("INT32", "none")],
)  # fmt: skip
def test_the_default_scaling_depends_on_the_datatype(picture: str, datatype: str, scaling: str) -> None:
    made, words = image.to_tensor([picture], TensorSpec("X", datatype, (3, 2, 3)))
    assert made.datatype == datatype
    assert f"scaling {scaling}" in words
    assert "3×2 RGB to 3×2 RGB, NCHW" in words


def test_vgg_fits_into_signed_whole_numbers(picture: str) -> None:
    assert array(picture, "INT16", (3, 2, 3), "vgg")[:, 0, 0].tolist() == [132, -117, -104]


@pytest.mark.parametrize(
    ("datatype", "scaling", "words"),
    [("UINT8", "inception", "between -1 and 1"), ("UINT8", "vgg", "does not fit into UINT8"),
     ("INT8", "none", "does not fit into INT8")],
)  # fmt: skip
def test_numbers_that_the_datatype_cannot_hold_are_refused(
    picture: str, datatype: str, scaling: str, words: str
) -> None:
    with pytest.raises(UserError, match=words) as caught:
        array(picture, datatype, (3, 2, 3), scaling)
    assert "data.scaling" in (caught.value.key or caught.value.remedy)


# --- kinds of images -------------------------------------------------------------------------------------------------


def test_grey_for_a_model_of_one_channel(picture: str) -> None:
    """Pillow's luma: 299 red + 587 green + 114 blue, in thousandths."""
    assert array(picture, "UINT8", (1, 2, 3)).tolist() == [[[76, 150, 29], [0, 51, 255]]]


def test_grey_images_become_three_equal_channels(tmp_path: Path) -> None:
    path = saved(tmp_path, Image.fromarray(np.array([[7, 200]], np.uint8)))
    assert array(path, "UINT8", (3, 1, 2)).tolist() == [[[7, 200]]] * 3


def test_alpha_is_dropped(tmp_path: Path) -> None:
    path = saved(tmp_path, Image.fromarray(np.array([[[1, 2, 3, 0], [4, 5, 6, 128]]], np.uint8)))
    assert array(path, "UINT8", (1, 2, 3), form="FORMAT_NHWC").tolist() == [[[1, 2, 3], [4, 5, 6]]]


def test_a_palette_is_looked_up(tmp_path: Path) -> None:
    path = saved(tmp_path, Image.fromarray(PIXELS).quantize(8), "image.gif")
    assert array(path, "UINT8", (2, 3, 3), form="FORMAT_NHWC").tolist() == PIXELS.tolist()


def test_sixteen_bit_grey_is_scaled_to_eight_bits(tmp_path: Path) -> None:
    path = saved(tmp_path, Image.fromarray(np.array([[0, 0x1234, 0xFFFF]], np.uint16)))
    assert array(path, "UINT8", (1, 1, 3)).tolist() == [[[0, 0x12, 0xFF]]]


def test_a_photo_is_turned_upright(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter, clockwise
    path = saved(tmp_path, Image.fromarray(PIXELS), exif=exif)
    assert array(path, "UINT8", (3, -1, -1))[0].tolist() == [[0, 255], [51, 0], [255, 0]]


def test_an_input_of_bytes_gets_the_file_unchanged(picture: str) -> None:
    made, words = image.to_tensor([picture], TensorSpec("X", "BYTES", (-1, 1)))
    assert made.shape == (1, 1)
    assert to_numpy(made).item() == Path(picture).read_bytes()
    assert "unchanged" in words


def test_an_input_of_several_bytes_takes_no_image(picture: str) -> None:
    with pytest.raises(UserError, match="one image was given"):
        image.to_tensor([picture], TensorSpec("X", "BYTES", (2,)))


# --- several images --------------------------------------------------------------------------------------------------


def test_several_images_are_a_batch(picture: str) -> None:
    for shape in ((-1, 3, 2, 3), (2, 3, 2, 3)):
        made, words = image.to_tensor([picture, picture], TensorSpec("X", "UINT8", shape))
        assert made.shape == (2, 3, 2, 3)
        first, second = to_numpy(made)
        assert first.tolist() == second.tolist()
        assert words.startswith("2 images")


def test_several_files_are_a_batch_of_bytes(picture: str) -> None:
    made, words = image.to_tensor([picture, picture], TensorSpec("X", "BYTES", (-1, 1)))
    assert made.shape == (2, 1)
    assert to_numpy(made).ravel().tolist() == [Path(picture).read_bytes()] * 2
    assert words == "2 images, unchanged"


@pytest.mark.parametrize(("datatype", "shape"), [("FP32", (3, 2, 3)), ("FP32", (1, 3, 2, 3)), ("BYTES", (1,))])
def test_several_images_need_a_model_that_takes_batches(picture: str, datatype: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match="takes one image per request"):
        image.to_tensor([picture, picture], TensorSpec("X", datatype, shape))


def test_images_of_a_batch_have_one_size(tmp_path: Path, picture: str) -> None:
    Image.new("RGB", (7, 7)).save(tmp_path / "larger.png")
    with pytest.raises(UserError, match="different sizes"):
        image.to_tensor([picture, str(tmp_path / "larger.png")], TensorSpec("X", "FP32", (-1, 3, -1, -1)))


# --- what is wrong ---------------------------------------------------------------------------------------------------


def test_a_file_that_is_not_an_image(tmp_path: Path) -> None:
    (tmp_path / "x.jpg").write_text("hello")
    with pytest.raises(UserError, match="is not an image"):
        array(str(tmp_path / "x.jpg"), "FP32", (3, 2, 2))


@pytest.mark.parametrize("name", ["x.png", "x.jpg", "x.bmp"])
def test_a_truncated_image(tmp_path: Path, name: str) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)
    path = Path(saved(tmp_path, Image.fromarray(noise), name))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(UserError, match="the image is broken"):
        array(str(path), "FP32", (3, 2, 2))


def test_a_missing_file() -> None:
    with pytest.raises(UserError, match=r"/nowhere.*No such file"):
        array("/nowhere", "FP32", (3, 2, 2))


def test_without_pillow_the_extra_is_named(picture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "PIL":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UserError, match="need Pillow") as caught:
        array(picture, "FP32", (3, 2, 2))
    assert "inferometer[image]" in caught.value.remedy
