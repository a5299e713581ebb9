"""A model in a process of its own: both ends of its connections to the front ends.

A front end checks requests itself, sends them there, and gets responses. The queue, the batches, the instances and the
statistics are those of the model's process, so that the requests of all front ends share them.
"""

import socket
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from inferometer.serve.kserve import control
from inferometer.serve.kserve.messages import ModelConfig
from inferometer.serve.models import statistics
from inferometer.serve.models.model import Model
from inferometer.serve.models.queue import UNLIMITED
from inferometer.serve.models.registry import Models
from inferometer.serve.models.repository import ModelSource
from inferometer.serve.models.types import Emit, Finish, Inference, Loaded, Refused, Tensors, TextPart, Wanted
from inferometer.serve.offload import COPIED, OnDone, Threads, result_of
from inferometer.serve.openai.requests import TextRequest
from inferometer.serve.processes.link import Callback, Handlers, Link, Packed, Segments, attach

_INFERENCE = ("model", "id", "arrived", "deadline", "parameters", "text")
"""What is sent of an inference, besides its inputs."""
Description = tuple[bytes, str, str, Mapping[str, tuple[str, ...]], int]
"""A model: its configuration, version, platform, labels, and maximum length if it is a text model."""


async def bring_up(models: Models, name: str, address: bytes, description: Description) -> Model:
    """Return the model whose process listens at `address`."""
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(address)
    link = await attach(sock, {}, f"the process of model {name}")
    config, version, platform, labels, max_len = description
    labels = {output: tuple(names) for output, names in labels.items()}
    begin = partial(_forward, link, models.offload, Segments(link))
    loaded = Loaded(begin=begin, is_remote=True, slots=0, labels=labels, max_len=max_len, close=link.close)
    model = Model(models, ModelConfig.FromString(config), version, platform, [loaded])
    link.lost.add_done_callback(lambda _: models.lose(model, f"{link.other} ended"))
    return model


def _forward(
    link: Link, offload: Threads, segments: Segments, inputs: Tensors, inference: Inference, emit: Emit, finish: Finish
) -> Callable[[], None]:
    """Send a request to the model's process. Return what cancels it."""
    number = 0

    def send(packed: Packed | None, error: BaseException | None) -> None:
        nonlocal number
        if packed is None:
            finish(Refused("RESOURCE_EXHAUSTED", f"cannot pass the inputs on: {error}"))
        elif inference.is_over:
            segments.unused(packed[1])
            finish(None)
        else:
            fields = {name: getattr(inference, name) for name in _INFERENCE}
            wanted = [one.name for one in inference.wanted]
            number = link.start("infer", packed, wanted, fields, part=part, done=lambda _, why: finish(why))

    def part(queue_ns: int, compute_ns: int, made: Any) -> None:
        inference.queue_ns, inference.compute_ns = queue_ns, compute_ns
        emit(segments.unpack(*made) if inference.text is None else TextPart(*made))

    tensors = list(inputs.values())
    offload.run(sum([len(tensor.data) for tensor in tensors]) // COPIED, lambda: segments.pack(tensors), send)
    return lambda: link.tell("cancel", number)  # 0, if it is not sent yet, has no effect


async def load(
    link: Link, name: str, path: str | None, config: str, device: str, overrides: list[str]
) -> tuple[bytes, Description]:
    """Be the model's process: load it and listen for front ends. The `link` to the hub is closed after the last of them."""
    models = Models(link.loop, device=device, overrides=tuple(overrides), limit=UNLIMITED)  # front ends limit them
    models.add_source(ModelSource(name, Path(path) if path else None))
    await models.start(config)
    link.handlers |= counted(models) | {"close": models.close}
    model = models.find(name)
    front_ends: list[Link] = []

    def accept() -> Link:
        front_ends.append(made := Link({}))
        made.lost.add_done_callback(gone)
        made.streams["infer"] = partial(_infer, models, Segments(made))
        return made

    def gone(_: Any) -> None:
        if all(front_end.lost.done() for front_end in front_ends):
            link.close()

    sock = socket.socket(socket.AF_UNIX)
    sock.bind("")  # to an abstract name of the kernel's choice
    await link.loop.create_unix_server(accept, sock=sock)
    facts = model.version, model.platform, model.labels, model.max_len
    return sock.getsockname(), (model.config.SerializeToString(), *facts)


def counted(models: Models, more: Callable[[], bytes] = bytes) -> Handlers:
    """Return what a process contributes to the metrics and statistics of the server: with its models, and `more`."""
    started = time.time()
    return {
        "metrics": lambda: statistics.page(models, started) + more(),
        "statistics": lambda *which: control.own_statistics(models, *which).SerializeToString(),
    }


async def _infer(
    models: Models, segments: Segments, part: Callback, packed: Packed, wanted: list[str], fields: dict[str, Any]
) -> None:
    def responded(made: Any) -> None:
        if inference.text is None:
            made = segments.pack(made)
        part(inference.queue_ns, inference.compute_ns, made)

    def start(done: OnDone) -> None:
        inference.ended = partial(done, None)
        models.submit(inference)

    fields["text"] = msgspec.convert(fields["text"], TextRequest | None)
    outputs = tuple(map(Wanted, wanted))
    inference = Inference(inputs=segments.unpack(*packed), responded=responded, wanted=outputs, **fields)
    try:
        await result_of(start)
    finally:
        models.cancel(inference)  # unless it is over
        inference.inputs = {}  # free their memory now
