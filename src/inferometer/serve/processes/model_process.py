"""A model in a process of its own: both ends of its connections to the front ends.

A front end checks requests itself, sends them there, and gets responses. The queue, the batches, the instances and the
statistics are those of the model's process, so that the requests of all front ends share them.
"""

import asyncio
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from inferometer.serve.kserve import control
from inferometer.serve.kserve.messages import ModelConfig
from inferometer.serve.memory import keep_one_heap
from inferometer.serve.models import statistics
from inferometer.serve.models.model import Model
from inferometer.serve.models.queue import UNLIMITED
from inferometer.serve.models.registry import Models
from inferometer.serve.models.repository import ModelSource
from inferometer.serve.models.types import Emit, Finish, Inference, Loaded, Output, Refused, Wanted, reason
from inferometer.serve.offload import COPIED, Offload
from inferometer.serve.openai.model import Generation, TextModel, Vectors
from inferometer.serve.processes.link import Cancel, Done, Handlers, Link, Part, Segments, attach, ignore, listen

_TEXT_FACTS = ("name", "max_len", "can_generate", "can_embed")
_GENERATION = (
    "prompt", "max_tokens", "temperature", "top_p", "top_k", "seed", "stop", "ignore_eos", "min_tokens",
)  # fmt: skip
_INFERENCE = ("model", "id", "arrived", "deadline", "parameters")
"""What is sent of a text model, a generation and an inference."""


# --- in a front end --------------------------------------------------------------------------------------------------


async def bring_up(address: str, name: str, models: Models) -> Model:
    """Return the model whose process listens at `address`."""
    link = await attach(address, {}, f"the process of model {name}")
    encoded, version, platform, labels, facts = await link.call("describe")
    labels = {output: tuple(names) for output, names in labels.items()}
    loaded = Loaded(forward=partial(_forward, link, models.offload, Segments(link)), labels=labels, close=link.close)
    loaded.text = _RemoteText(link, *facts) if facts else None
    model = Model(models, ModelConfig.FromString(encoded), version, platform, [loaded])
    link.lost.add_done_callback(lambda _: models.lose(model, f"{link.other} ended"))
    return model


def _forward(
    link: Link, offload: Offload, segments: Segments, inference: Inference, emit: Emit, finish: Finish
) -> Cancel:
    """Send a request to the model's process. Return what cancels it."""
    number, is_cancelled = 0, False

    def send(packed: Any, error: BaseException | None) -> None:
        nonlocal number
        if error is not None:
            finish(Refused("RESOURCE_EXHAUSTED", f"cannot pass the inputs on: {error}"))
        elif is_cancelled:
            segments.unused(packed[0])
            finish(None)
        else:
            fields = {name: getattr(inference, name) for name in _INFERENCE}
            wanted = [one.name for one in inference.wanted]
            number = link.start("infer", packed, wanted, fields, part=part, done=lambda _, why: finish(why))

    def part(queue_ns: int, compute_ns: int, packed: list[Any]) -> None:
        inference.queue_ns, inference.compute_ns = queue_ns, compute_ns
        emit(segments.unpack(*packed))

    def cancel() -> None:
        nonlocal is_cancelled
        is_cancelled = True
        if number:
            link.tell("cancel", number)

    tensors = list(inference.inputs.values())
    offload.run(sum([len(tensor.data) for tensor in tensors]) // COPIED, lambda: segments.pack(tensors), send)
    return cancel


class _RemoteText:
    """A text model in another process (openai.model.TextModel)."""

    def __init__(self, link: Link, name: str, max_len: int, can_generate: bool, can_embed: bool) -> None:
        self.name, self.max_len, self.can_generate, self.can_embed = name, max_len, can_generate, can_embed
        self.encode, self.encode_chat = partial(link.call, "encode"), partial(link.call, "encode_chat")
        self._link = link

    def generate(self, request: Generation) -> None:
        def part(text: str, count: int, started: int) -> None:
            if request.state is not None:
                request.started = started
                request.tokens(text, count)

        def done(how: Any, why: Any) -> None:
            if request.state is not None:
                how, request.stopped = how or ("abort", None)
                request.ended(how, why)

        fields = {name: getattr(request, name) for name in _GENERATION}
        request.state = self._link.start("generate", fields, part=part, done=done)

    def cancel(self, request: Generation) -> None:
        number, request.state = request.state, None
        self._link.tell("cancel", number)

    def embed(self, inputs: list[list[int]], then: Vectors) -> None:
        def done(vectors: list[bytes] | None, why: Any) -> None:
            then(None if why else [np.frombuffer(vector, np.float32) for vector in vectors or ()], why)

        self._link.start("embed", inputs, done=done)


# --- in the model's process ------------------------------------------------------------------------------------------


async def load(
    link: Link, over: asyncio.Event, name: str, path: str | None, config: str, device: str, overrides: list[str]
) -> str:
    """Load the model and listen for front ends; return the address. `link` is that to the hub, `over` is set when the
    last front end has gone."""
    keep_one_heap()
    models = Models(link.loop, device=device, overrides=tuple(overrides), limit=UNLIMITED)  # front ends limit them
    models.add_source(ModelSource(name, Path(path) if path else None))
    await models.start(config)
    link.handlers |= counted(models) | {"close": models.close}
    return await listen(partial(_accept, models, name, set(), over))


def counted(models: Models) -> Handlers:
    """Return what a process that has models contributes to the metrics and statistics of the server."""
    return {
        "metrics": partial(statistics.page, models, time.time()),
        "statistics": lambda *which: control.own_statistics(models, *which).SerializeToString(),
    }


def _accept(models: Models, name: str, front_ends: set[Link], over: asyncio.Event) -> Link:
    """Return the link for a new connection."""

    def gone(_: Any) -> None:
        front_ends.discard(link)
        if not front_ends:
            over.set()

    model = models.find(name)
    text: TextModel | None = model.text
    facts = text and [getattr(text, each) for each in _TEXT_FACTS]
    description = model.config.SerializeToString(), model.version, model.platform, model.labels, facts
    link = Link({"describe": lambda: description})
    link.streams["infer"] = partial(_infer, models, Segments(link))
    if text is not None:
        link.streams |= {"generate": partial(_generate, text), "embed": partial(_embed, text)}
        link.handlers |= {"encode": text.encode, "encode_chat": text.encode_chat}
    front_ends.add(link)
    link.lost.add_done_callback(gone)
    return link


def _infer(
    models: Models, segments: Segments, part: Part, done: Done, tensors: list[Any], wanted: list[str], fields: Any
) -> Cancel:
    def responded(outputs: tuple[Output, ...]) -> None:
        part(inference.queue_ns, inference.compute_ns, segments.pack(output.tensor for output in outputs))

    def ended(why: Refused | None) -> None:
        inference.inputs, inference.responded, inference.ended = {}, ignore, ignore  # free their memory now
        done(None, why)

    outputs = tuple([Wanted(name) for name in wanted])
    inference = Inference(inputs=segments.unpack(*tensors), responded=responded, ended=ended, wanted=outputs, **fields)
    try:
        models.submit(inference)
    except Exception as error:
        ended(reason(error))
    return partial(models.cancel, inference)


def _generate(text: TextModel, part: Part, done: Done, fields: dict[str, Any]) -> Cancel:
    def tokens(new: str, count: int) -> None:
        part(new, count, request.started)

    def ended(how: str, why: Refused | None) -> None:
        done((how, request.stopped), why)

    request = Generation(tokens=tokens, ended=ended, **(fields | {"stop": tuple(fields["stop"])}))
    text.generate(request)
    return partial(text.cancel, request)


def _embed(text: TextModel, _: Part, done: Done, inputs: list[list[int]]) -> Cancel:
    def then(vectors: list[np.ndarray] | None, why: Refused | None) -> None:
        done([np.asarray(vector, np.float32).tobytes() for vector in vectors or ()], why)

    text.embed(inputs, then)
    return ignore
