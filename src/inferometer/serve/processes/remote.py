"""A model in another process, as a front end sees it: it checks requests itself, sends them there, and gets responses.

The queue, the batches, the instances and the statistics are those of the other process (worker.py), so that the requests
of all front ends share them.
"""

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

from inferometer.serve.kserve.messages import ModelConfig
from inferometer.serve.models.model import Model
from inferometer.serve.models.registry import Models
from inferometer.serve.models.types import Inference, Loaded, Refused, Tensors
from inferometer.serve.offload import Offload
from inferometer.serve.processes.link import connect
from inferometer.serve.processes.segments import Segments
from inferometer.serve.processes.text import RemoteText

Emit = Callable[[Tensors], None]
Finish = Callable[[Refused | None], None]
_AT_ONCE = 1 << 20
"""Bytes up to which copying takes no longer than handing the work to a thread."""


class Remote:
    """The requests that this process has sent to a model's process, by number."""

    def __init__(self, name: str, offload: Offload) -> None:
        self._name, self._offload = name, offload
        self._numbers = itertools.count(1)
        self._running: dict[int, tuple[Inference, Emit, Finish]] = {}

    async def connect(self, address: str) -> Any:
        """Return the model's configuration, version, platform and labels."""
        self.link = await connect(address, {"part": self._part, "done": self._done})
        self._segments = Segments(self.link)
        return await self.link.call("describe")

    def when_lost(self, then: Callable[[str], None]) -> None:
        """Call `then` with the reason if the process ends before `close`."""
        self._then = then
        self.link.lost.add_done_callback(lambda _: self._lost())

    def forward(self, inference: Inference, emit: Emit, finish: Finish) -> Callable[[], None]:
        number = next(self._numbers)
        self._running[number] = inference, emit, finish
        tensors = list(inference.inputs.values())
        size = sum([len(tensor.data) for tensor in tensors])
        send = partial(self._send, number)
        self._offload.run(size if size > _AT_ONCE else 0, lambda: self._segments.pack(tensors), send)
        return partial(self._cancel, number)

    def close(self) -> None:
        self._then = lambda why: None
        self.link.close()

    def _send(self, number: int, packed: Any, error: BaseException | None) -> None:
        if number not in self._running:  # cancelled meanwhile
            self._segments.unused(packed[0] if packed else -1)
        elif error is not None:
            self._running.pop(number)[2](Refused("RESOURCE_EXHAUSTED", f"cannot pass the inputs on: {error}"))
        else:
            one = self._running[number][0]
            wanted = [each.name for each in one.wanted]
            self.link.tell(
                "infer", number, one.id, *packed, wanted, dict(one.parameters), one.arrived, one.deadline
            )  # fmt: skip

    def _cancel(self, number: int) -> None:
        if self._running.pop(number, None) is not None:
            self.link.tell("cancel", number)

    def _part(self, number: int, queue_ns: int, compute_ns: int, segment: int, packed: list[Any]) -> None:
        """Pass a response on."""
        outputs = self._segments.unpack(segment, packed)
        if number in self._running:
            inference, emit, _ = self._running[number]
            inference.queue_ns, inference.compute_ns = queue_ns, compute_ns
            emit(outputs)

    def _done(self, number: int, why: list[str]) -> None:
        if number in self._running:
            self._running.pop(number)[2](Refused(*why) if why else None)  # type: ignore[arg-type]

    def _lost(self) -> None:
        self._segments.close()
        why = f"the process of model {self._name} ended"
        self._then(why)
        while self._running:
            self._running.popitem()[1][2](Refused("UNAVAILABLE", why))


async def bring_up(address: str, name: str, models: Models) -> Model:
    """Return the model whose process listens at `address`."""
    remote = Remote(name, models.offload)
    encoded, version, platform, labels, facts = await remote.connect(address)
    labels = {output: tuple(names) for output, names in labels.items()}
    loaded = Loaded(forward=remote.forward, labels=labels, close=remote.close)
    if facts:
        loaded.text = RemoteText(address, remote.link, *facts)
    model = Model(models, name, version, ModelConfig.FromString(encoded), platform=platform, loaded=[loaded])
    remote.when_lost(partial(models.lose, model))
    return model
