"""The process of a model: loads it, and computes what front ends send."""

import asyncio
from functools import partial
from typing import Any

from inferometer.serve.models.registry import Models
from inferometer.serve.models.types import Inference, Output, Refused, Wanted, reason
from inferometer.serve.processes import text
from inferometer.serve.processes.link import Link
from inferometer.serve.processes.segments import Segments

NO_LIMIT = 1 << 40
"""Front ends limit the requests in progress."""


class Worker:
    """A model and the front ends that use it. `idle` is set when the last one has gone."""

    def __init__(self, models: Models, name: str, idle: asyncio.Event) -> None:
        self._models, self._name, self._idle = models, name, idle
        self._text = models.find(name).text
        self._front_ends: set[Link] = set()

    def accept(self) -> Link:
        """Return the link for a new connection."""
        requests: dict[int, Inference] = {}
        link = Link({"describe": self._describe, "cancel": partial(self._cancel, requests)}, self._front_ends.add)
        link.handlers["infer"] = partial(self._infer, link, Segments(link), requests)
        if self._text is not None:
            link.handlers |= text.serve(self._text, link)
        link.lost.add_done_callback(lambda _: self._gone(link, requests))
        return link

    def _describe(self) -> tuple[Any, ...]:
        model = self._models.find(self._name)
        of_text = self._text and [getattr(self._text, name) for name in text.FACTS]
        return model.config.SerializeToString(), model.version, model.platform, model.labels, of_text

    def _infer(
        self,
        link: Link,
        segments: Segments,
        requests: dict[int, Inference],
        number: int,
        id: str,
        segment: int,
        packed: list[Any],
        wanted: list[str],
        parameters: dict[str, Any],
        arrived: int,
        deadline: int,
    ) -> None:
        def answer(outputs: tuple[Output, ...]) -> None:
            tensors = segments.pack(output.tensor for output in outputs)
            link.tell("part", number, inference.queue_ns, inference.compute_ns, *tensors)

        def ended(why: Refused | None) -> None:
            requests.pop(number, None)
            inference.inputs, inference.answer, inference.ended = {}, _ignore, _ignore  # free their memory now
            link.tell("done", number, [why.code, why.message] if why else [])

        inference = Inference(
            self._name,
            {},
            answer=answer,
            ended=ended,
            id=id,
            wanted=tuple([Wanted(name) for name in wanted]),
            parameters=parameters,
            arrived=arrived,
            deadline=deadline,
        )
        requests[number] = inference
        try:
            inference.inputs = segments.unpack(segment, packed)
            self._models.submit(inference)
        except Exception as error:
            ended(reason(error))

    def _cancel(self, requests: dict[int, Inference], number: int) -> None:
        if number in requests:
            self._models.cancel(requests[number])

    def _gone(self, link: Link, requests: dict[int, Inference]) -> None:
        for inference in list(requests.values()):
            self._models.cancel(inference)
        self._front_ends.discard(link)
        if not self._front_ends:
            self._idle.set()


def _ignore(_: object) -> None:
    pass
