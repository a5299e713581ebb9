"""The built-in classifier: identical weights everywhere, image decoding, batches equal to single requests."""

import hashlib
import io
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from backend_help import given, listed, loading, run_model, words

from inferometer.serve.models.types import Loaded, Refused
from inferometer.tensors import Tensor

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
classifier = pytest.importorskip("inferometer.serve.backends.classifier", reason="Pillow is not installed")
Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
pytestmark = pytest.mark.torch

CONFIG: dict[str, Any] = {"max_batch_size": 32, "dynamic_batching": {}, "name": "classifier"}


@pytest.fixture(scope="module")
def model() -> Loaded:
    return classifier.load(loading(**CONFIG))


def blocks(seed: int, height: int = 224, width: int = 224) -> Any:
    """Return an image of colored squares."""
    colours = np.random.default_rng(seed).integers(0, 256, (height // 28, width // 28, 3), np.uint8)
    return colours.repeat(28, 0).repeat(28, 1)


def encoded(pixels: Any, kind: str = "PNG", **more: Any) -> bytes:
    file = io.BytesIO()
    (pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)).save(file, kind, **more)
    return file.getvalue()


def of_images(model: Loaded, *images: bytes) -> Any:
    return run_model(model, image=words(*images).reshape(-1, 1))["scores"]


def of_pixels(model: Loaded, *images: Any) -> Any:
    planes = np.stack(images).transpose(0, 3, 1, 2).astype("f4") / np.float32(255)
    return run_model(model, pixels=np.ascontiguousarray(planes))["scores"]


def refusal(model: Loaded, **inputs: Any) -> str:
    with pytest.raises(Refused) as caught:
        run_model(model, **inputs)
    assert caught.value.code == "INVALID_ARGUMENT"
    return caught.value.message


# --- the net ---------------------------------------------------------------------------------------------------------


def test_weights_are_the_same_bytes_on_every_machine() -> None:
    digest = hashlib.sha256()
    for name, array in sorted(classifier.seeded().items()):
        if name != "bias":  # a sum, whose last bit numpy is free in
            digest.update(name.encode() + np.ascontiguousarray(array, "<f4").tobytes())
    assert digest.hexdigest() == "74a59109454a8d963d8ab6c50d11a59ec5317659f6d7ce3c26ee7babf26b0ea6"


def test_weights_have_the_documented_distribution() -> None:
    for name, array in classifier.seeded().items():
        if name.startswith("dense"):
            assert abs(float(array.mean())) < 1e-3
            assert float(array.var()) == pytest.approx(2 / array.shape[1], rel=0.02)


def test_scores_match_a_numpy_implementation() -> None:
    """The whole network once more, in float64, without PyTorch."""
    weights = {name: array.astype(float) for name, array in classifier.seeded().items()}
    image = blocks(3).transpose(2, 0, 1) / 255
    patches = image.reshape(3, 28, 8, 28, 8).transpose(1, 3, 0, 2, 4).reshape(28, 28, -1)
    first = np.clip(patches @ weights["stem"].reshape(32, -1).T + weights["bias"], -1, 1)
    padded = np.pad(first, ((1, 1), (1, 1), (0, 0)))
    second = np.zeros((14, 14, 64))
    for i in range(14):
        for j in range(14):
            part = padded[2 * i : 2 * i + 3, 2 * j : 2 * j + 3].transpose(2, 0, 1)
            second[i, j] = np.clip(np.tensordot(weights["conv"], part, 3), -1, 1)
    edges = [(i * 14 // 4, -(-(i + 1) * 14 // 4)) for i in range(4)]
    x = np.array([[second[a:b, c:d].mean((0, 1)) for c, d in edges] for a, b in edges]).transpose(2, 0, 1).reshape(-1)
    for name in ("dense1", "dense2", "dense3"):
        x = weights[name] @ x
        x = np.clip((x - x.mean()) / np.sqrt(x.var() + 1e-5), -1, 1)
    expected = np.exp(weights["last"] @ x)
    expected /= expected.sum()
    model = classifier.load(loading(**CONFIG))
    np.testing.assert_allclose(of_pixels(model, blocks(3))[0], expected, rtol=1e-3)


def test_instances_and_runs_agree_bit_for_bit(model: Loaded) -> None:
    again = classifier.load(loading(**CONFIG))
    first = of_pixels(model, blocks(1))
    assert (of_pixels(model, blocks(1)) == first).all()
    assert (of_pixels(again, blocks(1)) == first).all()


def test_scores_add_up_to_1_and_differ_between_images(model: Loaded) -> None:
    scores = of_pixels(model, *(blocks(seed) for seed in range(32)))
    assert scores.shape == (32, 100)
    np.testing.assert_allclose(scores.sum(1), 1, rtol=1e-5)
    assert (scores >= 0).all()
    assert len(set(scores.argmax(1).tolist())) > 8


def test_a_batch_gives_the_same_scores_as_single_images(model: Loaded) -> None:
    images = [encoded(blocks(seed), "JPEG") for seed in range(5)]
    together = of_images(model, *images)
    for image, row in zip(images, together, strict=True):
        np.testing.assert_allclose(of_images(model, image)[0], row, rtol=1e-4, atol=1e-7)


def test_configuration_has_optional_inputs_and_labels(model: Loaded) -> None:
    options = loading(**CONFIG)
    loaded = classifier.load(options)
    assert listed(options.config.input) == [("image", "STRING", (1,)), ("pixels", "FP32", (3, 224, 224))]
    assert [one.optional for one in options.config.input] == [True, True]
    assert listed(options.config.output) == [("scores", "FP32", (100,))]
    assert options.config.output[0].label_filename
    labels = loaded.labels["scores"]
    assert len(set(labels)) == 100
    assert all(label.isalpha() for label in labels)


# --- images ----------------------------------------------------------------------------------------------------------


def test_an_image_and_its_pixels_have_equal_scores(model: Loaded) -> None:
    assert (of_images(model, encoded(blocks(1))) == of_pixels(model, blocks(1))).all()


def test_a_jpeg_scores_almost_like_its_png(model: Loaded) -> None:
    large = Image.fromarray(blocks(2)).resize((1000, 800))
    png, jpeg = of_images(model, encoded(large), encoded(large, "JPEG", quality=95))
    assert png.argmax() == jpeg.argmax()
    np.testing.assert_allclose(jpeg, png, atol=0.05)


def test_images_of_any_size_are_resized(model: Loaded) -> None:
    assert of_images(
        model, encoded(blocks(1, 28, 56)), encoded(blocks(1, 448, 28)), encoded(blocks(0)[:1, :1])
    ).shape == (3, 100)


def test_exif_orientation_is_applied() -> None:
    upright = Image.fromarray(blocks(4))
    lying = upright.rotate(90, expand=True)
    exif = Image.Exif()
    exif[0x0112] = 6  # "turn it clockwise"
    assert (classifier.decoded(encoded(lying, exif=exif)) == blocks(4)).all()
    assert (classifier.decoded(encoded(lying)) != blocks(4)).any()


@pytest.mark.parametrize("mode", ["L", "LA", "RGBA", "P", "1", "CMYK"])
def test_every_color_mode_is_converted_to_rgb(mode: str) -> None:
    kind = "JPEG" if mode == "CMYK" else "PNG"
    assert classifier.decoded(encoded(Image.fromarray(blocks(5)).convert(mode), kind)).shape == (224, 224, 3)


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_a_truncated_image_is_refused_at_any_length(model: Loaded, kind: str) -> None:
    whole = encoded(blocks(6), kind)
    for end in (30, len(whole) // 2, len(whole) * 3 // 4):
        message = refusal(model, image=words(whole[:end]).reshape(1, 1))
        assert message.startswith("input 'image': ")
        assert "\n" not in message


@pytest.mark.parametrize(
    "data", [b"", b"junk", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe0", b"GIF89a", b"%!PS-Adobe-3.0 EPSF-3.0\n"]
)
def test_bytes_that_are_not_an_image_are_refused(model: Loaded, data: bytes) -> None:
    assert "input 'image': " in refusal(model, image=words(data).reshape(1, 1))


def test_gif_is_not_supported(model: Loaded) -> None:
    assert "not a JPEG or PNG image" in refusal(model, image=words(encoded(blocks(1), "GIF")).reshape(1, 1))


@pytest.mark.filterwarnings("ignore:Image size")
@pytest.mark.parametrize("size", [(10_000, 10_000), (60_000, 60_000)])
def test_decompression_bombs_are_refused(model: Loaded, size: tuple[int, int]) -> None:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", *size, 8, 2, 0, 0, 0))
    bomb = b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    message = refusal(model, image=words(bomb).reshape(1, 1))
    assert "too large" in message or "exceeds limit" in message


def test_corrupted_images_are_at_most_refused() -> None:
    whole = {kind: encoded(blocks(7), kind) for kind in ("JPEG", "PNG")}
    generator = np.random.default_rng(0)
    for kind, data in whole.items():
        for _ in range(60):
            noisy = bytearray(data)
            for position in generator.integers(0, len(noisy), 5):
                noisy[position] = int(generator.integers(0, 256))
            try:
                assert classifier.decoded(bytes(noisy)).shape == (224, 224, 3), kind
            except Refused as refused:
                assert refused.code == "INVALID_ARGUMENT"


@pytest.mark.parametrize("names", [(), ("image", "pixels")])
def test_exactly_one_input_must_be_given(model: Loaded, names: tuple[str, ...]) -> None:
    both: dict[str, Any] = {
        "image": words(encoded(blocks(0))).reshape(1, 1),
        "pixels": np.zeros((1, 3, 224, 224), "f4"),
    }
    message = refusal(model, **{name: both[name] for name in names})
    assert message.endswith(f"(got {', '.join(names) or 'none'})")


def test_pixels_may_be_a_memory_view(model: Loaded) -> None:
    planes = np.ascontiguousarray(blocks(1).transpose(2, 0, 1)[None].astype("f4") / np.float32(255))
    raw = memoryview(b"x" + planes.tobytes())[1:]
    made = given(pixels=Tensor("pixels", "FP32", planes.shape, raw))
    assert model.run is not None
    assert (run_model(model, **made)["scores"] == of_pixels(model, blocks(1))).all()
