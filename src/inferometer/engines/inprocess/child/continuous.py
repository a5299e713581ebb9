"""Continuous batching by Hugging Face transformers: requests join and leave the batch at every step.

A closed loop keeps `level` requests in flight. The library itself notes when each token was on the CPU (`record_timestamps`), in its
own thread, so nothing has to be handed over between threads for each token. Its perf_counter is CLOCK_MONOTONIC.
"""

import inspect
from collections.abc import Callable
from typing import Any

from inferometer.engines.inprocess.child import devices
from inferometer.engines.inprocess.child.errors import Unusable, one_line
from inferometer.engines.inprocess.child.hugging_face import FAILED, _Engine, fail
from inferometer.engines.inprocess.child.jobs import Job, Recording, Request, Row, now
from inferometer.engines.inprocess.child.prompts import trimmed

_CPU_SHARE = 0.2
"""Share of the free memory for keys and values on a CPU, at most. The library takes 60 %, which other processes may need."""
_MOST_BLOCKS = 1024
"""Blocks up to which they are as many as the requests in flight can need, rather than a share of the memory."""
_WAIT = 0.5


class Continuous(_Engine):
    def __init__(self, loaded: Any, phase: Callable[[str], None]) -> None:
        super().__init__(loaded)
        if not hasattr(loaded.model, "init_continuous_batching"):
            version = self.versions.get("transformers", "this version")
            raise Unusable(f"transformers {version} has no continuous batching: install transformers 5 or later")
        self._manager: Any = None
        self._sent = 0
        is_cuda = loaded.device.type == "cuda"
        self._start()
        phase("graphs captured" if is_cuda else "warmed up")
        self.warm_up()
        self.facts = loaded.facts(**self._batching_facts())

    def _batching_facts(self) -> dict[str, str]:
        config = self._manager.continuous_batching_config
        return {"prefix cache": "on" if getattr(config, "allow_block_sharing", False) else "off"}

    def warm_up(self) -> None:
        self.complete([Request([self.loaded.pad] * 8, 4)], 4, False)

    def _start(self) -> None:
        """Start the library's own thread, if it does not run: it ends when memory runs out."""
        if self._manager is not None and self._manager.is_running():
            return
        loaded = self.loaded
        config = loaded.transformers.ContinuousBatchingConfig(**self._settings())
        generation = loaded.settings(1, False)
        generation.max_new_tokens = None
        if generation.eos_token_id is None:
            generation.eos_token_id = -1
        self._manager = loaded.model.init_continuous_batching(
            generation_config=generation, continuous_batching_config=config
        )
        self._manager.warmup()
        self._manager.start()

    def _settings(self) -> dict[str, Any]:
        names = self.loaded.transformers.ContinuousBatchingConfig.__dataclass_fields__
        settings = dict(self.loaded.batching)
        if self.loaded.device.type == "cpu" and not {"num_blocks", "max_memory_percent"} & set(settings):
            settings["max_memory_percent"] = _CPU_SHARE
            page = int(settings.get("page_size", 256))
            # Twice what is needed: new requests wait while only a few blocks are free.
            blocks = 2 * self.loaded.options.max_batch * -(-self.loaded.context // page) + 16
            if "page_size" in names and self.loaded.context and blocks <= _MOST_BLOCKS:
                settings["num_blocks"] = blocks
        if self.loaded.options.compile and "default_compile_level" in names:
            settings.setdefault("default_compile_level", 1)
        return settings

    def generate(self, job: Job, recording: Recording) -> None:
        self._start()
        waiting = job.each()
        in_flight: dict[str, Row] = {}
        while True:
            while len(in_flight) < job.level and (entry := next(waiting, None)) is not None:
                self._submit(entry, job, in_flight, recording)
            recording.in_flight = len(in_flight)
            if not in_flight:
                return
            result = self._next()
            if result.request_id in in_flight:
                row = in_flight.pop(result.request_id)
                self._finish(row, result)
                recording.add(row)
                if row.n_out > 0 and not row.arrivals:
                    recording.notes.append(_RESET)

    def _submit(
        self, entry: tuple[int, int, Request], job: Job, in_flight: dict[str, Row], recording: Recording
    ) -> None:
        number, index, request = entry
        row = Row(number, index, now(), n_want=request.n_out)
        try:
            ids = self.prompts.ids(request, job.chat)
            row.n_in = len(ids)
            forced = bool(request.n_out) and job.ignore_eos
            in_flight[self._add(ids, self.prompts.limit(request, len(ids)), forced)] = row
        except Exception as error:
            fail(row, error)
            recording.add(row)

    def _add(self, ids: list[int], most: int, is_forced: bool) -> str:
        self._sent += 1
        name = f"inferometer-{self._sent}"
        ends = -1 if is_forced or not self.loaded.ends else self.loaded.ends
        added = self._manager.add_request(
            ids, request_id=name, max_new_tokens=most, record_timestamps=True, eos_token_id=ends
        )
        if added is None:
            raise self._fatal() or RuntimeError("continuous batching takes no more requests")
        return name

    def _next(self) -> Any:
        """The next result of a request that has ended. Raises what ended the library's thread, if it has ended."""
        while True:
            result = self._manager.get_result(timeout=_WAIT)
            if (fatal := self._fatal()) is not None:
                self._manager = None
                raise fatal
            if result is not None and result.is_finished():
                return result
            if result is None and not self._manager.is_running():
                self._manager = None
                raise RuntimeError("continuous batching ended unexpectedly")

    def _fatal(self) -> "BaseException | None":
        status = getattr(self._manager, "background_thread_status", None)
        error: BaseException | None = getattr(status, "fatal_error", None)
        return error

    def _finish(self, row: Row, result: Any) -> None:
        if result.error is not None:
            row.done, row.failure, row.message = now(), FAILED, str(result.error)[:500]
            return
        made = list(result.generated_tokens)
        self.prompts.text(made)
        row.done, row.n_out = now(), len(made)
        stamps = [round(each * 1e9) for each in result.timestamps or ()]
        if made and len(stamps) == len(made):
            row.arrivals, row.tokens = stamps, [1] * len(stamps)
            row.first, row.last = stamps[0], stamps[-1]

    def complete(self, requests: list[Request], tokens: int, chat: bool) -> list[dict[str, Any]]:
        self._start()
        names: dict[str, int] = {}
        outputs: list[dict[str, Any]] = [{"text": "", "error": "there was no result"} for _ in requests]
        for index, request in enumerate(requests):
            try:
                names[self._add(self.prompts.ids(Request(request.prompt, tokens), chat), tokens, False)] = index
            except Unusable as error:
                outputs[index] = {"text": "", "error": one_line(error)}
        while names:
            result = self._next()
            if result.request_id not in names:
                continue
            index = names.pop(result.request_id)
            made = trimmed(list(result.generated_tokens), set(self.loaded.ends))
            outputs[index] = {"text": self.prompts.text(made), "ids": made}
            if result.error is not None:
                outputs[index] = {"text": "", "error": str(result.error)[:500]}
        return outputs

    def free_memory(self) -> None:
        """After an error, requests may be left in the batch: the next level starts the library's thread again."""
        manager, self._manager = self._manager, None
        if manager is not None and manager.is_running():
            arguments = inspect.signature(manager.stop).parameters
            manager.stop(block=True, timeout=10, **({"hard_stop": True} if "hard_stop" in arguments else {}))
        devices.free_memory(self.torch)

    def close(self) -> None:
        self.free_memory()


_RESET = (
    "memory for keys and values ran short: requests were started again, and the times of their tokens are not known"
)
