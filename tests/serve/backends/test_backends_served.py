"""Each backend behind the server's queues: loaded from a repository, batched, run."""

import asyncio
import io
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backend_help import words

from inferometer.serve.models.registry import Models
from inferometer.serve.models.types import Inference, Refused, Wanted
from inferometer.tensors import Tensor, from_numpy, to_numpy
from inferometer.timing.clock import now

Infer = Callable[..., Awaitable[list[dict[str, Any]]]]


def served(source: Path | str, scenario: Callable[[Models, Infer], Awaitable[None]], **settings: Any) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        models = Models(loop, device="cpu", **settings)
        models.add(str(source))
        await models.start()

        async def infer(model: str, wanted: tuple[Wanted, ...] = (), **arrays: Any) -> list[dict[str, Any]]:
            over: asyncio.Future[Refused | None] = loop.create_future()
            responses: list[dict[str, Any]] = []
            inputs = {name: one if isinstance(one, Tensor) else from_numpy(name, one) for name, one in arrays.items()}
            models.submit(
                Inference(
                    model,
                    inputs,
                    responded=lambda made: responses.append({one.name: to_numpy(one) for one in made}),
                    ended=over.set_result,
                    arrived=now(),
                    wanted=wanted,
                )
            )
            refused = await asyncio.wait_for(over, 60)
            if refused is not None:
                raise refused
            return responses

        try:
            await scenario(models, infer)
        finally:
            await models.close()

    asyncio.run(main())


def test_python_models_of_a_repository_valid_and_invalid(tmp_path: Path) -> None:
    config = (
        "CONFIG = {'max_batch_size': 8, 'dynamic_batching': {'max_queue_delay_microseconds': 100000}, "
        "'input': [{'name': 'A', 'data_type': 'TYPE_FP32', 'dims': [2]}], "
        "'output': [{'name': 'B', 'data_type': 'TYPE_FP32', 'dims': [1]}]}\n"
    )
    for name, text in {
        "rows": config + "def infer(inputs, parameters): return {'B': 0 * inputs['A'][:, :1] + len(inputs['A'])}\n",
        "broken": "1 / 0\n",
        "failing": config
        + "def infer(inputs, parameters): return {'B': inputs['A'][:, :1] if not inputs['A'].any() else int('x')}\n",
    }.items():
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "1" / "model.py").write_text(text)

    async def scenario(models: Models, infer: Infer) -> None:
        index = {one.name: one for one in models.index()}
        assert index["rows"].state == "READY"
        assert index["broken"].state == "UNAVAILABLE"
        assert "ZeroDivisionError" in index["broken"].reason
        one = np.array([[1, 2]], "f4")
        together = await asyncio.gather(*(infer("rows", A=one) for _ in range(8)))
        assert max(made[0]["B"][0, 0] for made in together) > 1  # they were computed in batches
        assert all(made[0]["B"].shape == (1, 1) for made in together)
        with pytest.raises(Refused, match="ValueError") as caught:
            await infer("failing", A=one)
        assert caught.value.code == "INTERNAL"
        assert (await infer("failing", A=one * 0))[0]["B"].tolist() == [[0]]

    served(tmp_path, scenario)


@pytest.mark.torch
def test_the_classifier_accepts_images_and_returns_labels() -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    pixels = np.random.default_rng(0).integers(0, 256, (224, 224, 3), np.uint8)
    file = io.BytesIO()
    image.fromarray(pixels).save(file, "PNG")
    planes = np.ascontiguousarray(pixels.transpose(2, 0, 1)[None].astype("f4") / np.float32(255))

    async def scenario(models: Models, infer: Infer) -> None:
        best = (Wanted("scores", classes=3),)
        by_file = await infer("classifier", best, image=words(file.getvalue()).reshape(1, 1))
        by_pixels = await infer("classifier", best, pixels=planes)
        assert by_file[0]["scores"].tolist() == by_pixels[0]["scores"].tolist()
        score, number, label = by_file[0]["scores"][0, 0].decode().split(":")
        assert label == models.find("classifier").labels["scores"][int(number)]
        assert 0 < float(score) < 1
        with pytest.raises(Refused) as caught:
            await infer("classifier", image=words(b"junk").reshape(1, 1))
        assert caught.value.code == "INVALID_ARGUMENT"
        singles = [
            (await infer("classifier", pixels=planes * scale))[0]["scores"] for scale in np.float32([0.2, 0.5, 1])
        ]
        batched = await asyncio.gather(
            *(infer("classifier", pixels=planes * scale) for scale in np.float32([0.2, 0.5, 1]))
        )
        for alone, among in zip(singles, batched, strict=True):
            np.testing.assert_allclose(among[0]["scores"], alone, rtol=1e-3, atol=1e-6)

    served("classifier", scenario)


@pytest.mark.transformers
def test_a_language_model_streams_and_stops_when_cancelled(tmp_path: Path) -> None:
    from test_backend_transformers import llama, saved, seeded  # noqa: PLC0415
    from transformers import LlamaForCausalLM  # noqa: PLC0415

    folder = saved(tmp_path / "writer", seeded(LlamaForCausalLM, llama(max_position_embeddings=100_000)))

    async def scenario(models: Models, infer: Infer) -> None:
        made = await infer("writer", text_input=words("w1 w2"), max_tokens=np.array([5], "i4"))
        assert 1 < len(made) <= 5
        loop = asyncio.get_running_loop()
        over: asyncio.Future[Refused | None] = loop.create_future()
        first: asyncio.Future[None] = loop.create_future()

        def on_response(_: Any) -> None:
            if not first.done():
                first.set_result(None)

        endless = Inference(
            "writer",
            {
                "text_input": from_numpy("text_input", words("w1")),
                "max_tokens": from_numpy("max_tokens", np.array([90_000], "i4")),
            },
            responded=on_response,
            ended=over.set_result,
            arrived=now(),
        )
        models.submit(endless)
        await asyncio.wait_for(first, 60)
        models.cancel(endless)
        refused = await asyncio.wait_for(over, 60)
        assert refused is not None
        assert refused.code == "CANCELLED"
        # The only instance is free again, long before 90,000 tokens.
        assert await infer("writer", text_input=words("w1 w2"), max_tokens=np.array([5], "i4"))

    served(folder, scenario)
