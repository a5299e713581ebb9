"""The process of a model: loads it, and computes what front ends send."""

import asyncio
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from inferometer.serve import metrics
from inferometer.serve.kserve import control
from inferometer.serve.memory import keep_one_heap
from inferometer.serve.models.registry import Models
from inferometer.serve.models.repository import ModelSource
from inferometer.serve.models.types import Inference, Output, Refused, Wanted, reason
from inferometer.serve.openai.model import Generation, TextModel
from inferometer.serve.processes.link import Cancel, Done, Link, Part, ignore, listen
from inferometer.serve.processes.segments import Segments

TEXT_FACTS = ("name", "max_len", "can_generate", "can_embed")
_NO_LIMIT = 1 << 40
"""Front ends limit the requests in progress."""


async def load(
    link: Link, over: asyncio.Event, source: list[Any], config: str, device: str, overrides: list[str]
) -> str:
    """Load the model and listen for front ends; return the address. `link` is that to the hub, `over` is set when the
    last front end has gone."""
    keep_one_heap()
    models = Models(link.loop, device=device, overrides=tuple(overrides), limit=_NO_LIMIT)
    name, path = source
    models.add_source(ModelSource(name, path and Path(path)))
    await models.start(config)
    link.handlers |= {
        "metrics": partial(metrics.page, models, time.time()),
        "statistics": lambda *which: control.own_statistics(models, *which).SerializeToString(),
        "close": models.close,
    }
    return await listen(partial(_accept, models, name, set(), over))


def _accept(models: Models, name: str, front_ends: set[Link], over: asyncio.Event) -> Link:
    """Return the link for a new connection."""

    def gone(_: Any) -> None:
        front_ends.discard(link)
        if not front_ends:
            over.set()

    model = models.find(name)
    text: TextModel | None = model.text
    facts = text and [getattr(text, each) for each in TEXT_FACTS]
    description = model.config.SerializeToString(), model.version, model.platform, model.labels, facts
    link = Link({"describe": lambda: description})
    link.streams["infer"] = partial(_infer, models, Segments(link))
    if text is not None:
        link.streams |= {"generate": partial(_generate, text), "embed": partial(_embed, text)}
        link.handlers |= {"encode": text.encode, "encode_chat": text.encode_chat}
    front_ends.add(link)
    link.lost.add_done_callback(gone)
    return link


def _infer(models: Models, segments: Segments, part: Part, done: Done, tensors: list[Any], fields: Any) -> Cancel:
    def answer(outputs: tuple[Output, ...]) -> None:
        part(inference.queue_ns, inference.compute_ns, segments.pack(output.tensor for output in outputs))

    def ended(why: Refused | None) -> None:
        inference.inputs, inference.answer, inference.ended = {}, ignore, ignore  # free their memory now
        done(None, why)

    wanted = tuple([Wanted(name) for name in fields.pop("wanted")])
    inference = Inference(inputs=segments.unpack(*tensors), answer=answer, ended=ended, wanted=wanted, **fields)
    try:
        models.submit(inference)
    except Exception as error:
        ended(reason(error))
    return partial(models.cancel, inference)


def _generate(text: TextModel, part: Part, done: Done, fields: dict[str, Any]) -> Cancel:
    def tokens(new: str, count: int) -> None:
        part(new, count, request.queue_ns, request.started)

    request = Generation(tokens=tokens, ended=done, **(fields | {"stop": tuple(fields["stop"])}))
    text.generate(request)
    return partial(text.cancel, request)


def _embed(text: TextModel, _: Part, done: Done, inputs: list[list[int]]) -> Cancel:
    def then(vectors: list[np.ndarray] | None, why: Refused | None) -> None:
        done([np.asarray(vector, np.float32).tobytes() for vector in vectors or ()], why)

    text.embed(inputs, then)
    return ignore
