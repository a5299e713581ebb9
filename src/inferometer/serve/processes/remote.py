"""A model in another process, as a front end sees it: it checks requests itself, sends them there, and gets responses.

The queue, the batches, the instances and the statistics are those of the other process (worker.py), so that the requests
of all front ends share them.
"""

from collections.abc import Awaitable, Sequence
from typing import Any

import numpy as np

from inferometer.serve.kserve.messages import ModelConfig
from inferometer.serve.models.model import Model
from inferometer.serve.models.registry import Models
from inferometer.serve.models.types import Emit, Finish, Inference, Loaded, Refused
from inferometer.serve.offload import Offload
from inferometer.serve.openai.model import Generation, Vectors
from inferometer.serve.processes.link import Cancel, Link, attach
from inferometer.serve.processes.segments import Segments

_AT_ONCE = 1 << 20
"""Bytes up to which copying takes no longer than handing the work to a thread."""
_SENT = (
    "prompt", "max_tokens", "arrived", "temperature", "top_p", "top_k", "seed", "stop", "ignore_eos", "min_tokens",
)  # fmt: skip


async def bring_up(address: str, name: str, models: Models) -> Model:
    """Return the model whose process listens at `address`."""
    link = await attach(address, {}, f"the process of model {name}")
    requests = _Requests(link, models.offload)
    encoded, version, platform, labels, facts = await link.call("describe")
    labels = {output: tuple(names) for output, names in labels.items()}
    loaded = Loaded(forward=requests.forward, labels=labels, close=link.close)
    if facts:
        loaded.text = _Text(link, *facts)
    model = Model(models, name, version, ModelConfig.FromString(encoded), platform=platform, loaded=[loaded])
    link.lost.add_done_callback(lambda _: models.lose(model, f"{link.other} ended"))
    return model


class _Requests:
    """The requests that this process sends to a model's process."""

    def __init__(self, link: Link, offload: Offload) -> None:
        self._link, self._offload, self._segments = link, offload, Segments(link)

    def forward(self, inference: Inference, emit: Emit, finish: Finish) -> Cancel:
        number, is_cancelled = 0, False

        def send(packed: Any, error: BaseException | None) -> None:
            nonlocal number
            if error is not None:
                finish(Refused("RESOURCE_EXHAUSTED", f"cannot pass the inputs on: {error}"))
            elif is_cancelled:
                self._segments.unused(packed[0])
                finish(None)
            else:
                fields = {name: getattr(inference, name) for name in ("model", "id", "arrived", "deadline")}
                fields |= {"wanted": [one.name for one in inference.wanted], "parameters": dict(inference.parameters)}
                number = self._link.start("infer", packed, fields, part=part, done=lambda _, why: finish(why))

        def part(queue_ns: int, compute_ns: int, packed: list[Any]) -> None:
            inference.queue_ns, inference.compute_ns = queue_ns, compute_ns
            emit(self._segments.unpack(*packed))

        def cancel() -> None:
            nonlocal is_cancelled
            is_cancelled = True
            if number:
                self._link.tell("cancel", number)

        tensors = list(inference.inputs.values())
        size = sum([len(tensor.data) for tensor in tensors])
        self._offload.run(size if size > _AT_ONCE else 0, lambda: self._segments.pack(tensors), send)
        return cancel


class _Text:
    """A text model in another process (openai.model.TextModel)."""

    def __init__(self, link: Link, name: str, max_len: int, can_generate: bool, can_embed: bool) -> None:
        """The last arguments are worker.TEXT_FACTS."""
        self.name, self.max_len, self.can_generate, self.can_embed = name, max_len, can_generate, can_embed
        self._link = link

    def encode(self, texts: Sequence[str | list[int]]) -> Awaitable[list[list[int]]]:
        return self._link.call("encode", texts)

    def encode_chat(self, messages: Sequence[dict[str, str]]) -> Awaitable[list[list[int]]]:
        return self._link.call("encode_chat", messages)

    def generate(self, request: Generation) -> None:
        def part(text: str, count: int, started: int) -> None:
            if request.state is not None:
                request.started = started
                request.tokens(text, count)

        def done(how: Any, why: Any) -> None:
            if request.state is not None:
                how, request.stopped = how or ("abort", None)
                request.ended(how, why)

        fields = {name: getattr(request, name) for name in _SENT}
        request.state = self._link.start("generate", fields, part=part, done=done)

    def cancel(self, request: Generation) -> None:
        number, request.state = request.state, None
        self._link.tell("cancel", number)

    def embed(self, inputs: list[list[int]], then: Vectors) -> None:
        def done(vectors: list[bytes] | None, why: Any) -> None:
            then(None if why else [np.frombuffer(vector, np.float32) for vector in vectors or ()], why)

        self._link.start("embed", inputs, done=done)
