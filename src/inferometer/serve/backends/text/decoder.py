"""Computes tokens for many texts at once: one forward pass per step for all of them.

Keys and values live in one tensor with a fixed number of slots of a fixed length. A text has a slot; its prompt is
written there in chunks (`prefill`), then each step adds one position to every running slot (`decode`), each at its own
position. On GPUs the decode step is a CUDA graph per batch size and length, since at these sizes the launches of a
thousand small kernels take longer than the kernels. Tokens stay on the device between steps.
"""

import inspect
import logging
from collections.abc import Callable, Collection
from typing import Any

import numpy as np

_LENGTHS = 256
"""Smallest length of the captured graphs; the next ones double."""
_TOLERANCE = 0.25
"""Share of the standard deviation by which logits may differ: rounding with 16 bits differs less, a wrong position more."""
_ATTENTION = "inferometer_slots"
Controls = np.ndarray[Any, Any]
"""float32 [rows, 5]: temperature, top_p, top_k, a random number in [0, 1), and whether end-of-text tokens are excluded."""


class Unfit(Exception):  # noqa: N818  (not an error: the reason to use SeparateDecoder)
    """The reason why a model cannot be computed in slots."""


def sample(torch: Any, logits: Any, controls: Any, ends: Any) -> Any:
    """Choose a token per row, without a synchronisation. `controls` is on the device; rows with temperature 0 are greedy."""
    temperature, top_p, top_k, uniform, excludes = controls.unsqueeze(-1).unbind(1)
    if len(ends):
        logits[:, ends] = logits[:, ends].masked_fill(excludes > 0, float("-inf"))
    shares, order = (logits / temperature.clamp(min=1e-5)).softmax(-1).sort(-1, descending=True)
    rank = torch.arange(shares.shape[-1], device=shares.device)
    cut = (shares.cumsum(-1) - shares >= top_p) | ((rank >= top_k) & (top_k > 0))  # the first one is always kept
    summed = shares.masked_fill(cut, 0).cumsum(-1)
    index = (summed <= uniform * summed[:, -1:]).sum(-1, keepdim=True).clamp(max=shares.shape[-1] - 1)
    return torch.where(temperature > 0, order.gather(-1, index), order[:, :1])[:, 0]


class SlotDecoder:
    """A model with its slots. Raises Unfit if the model keeps something else than keys and values of all positions."""

    def __init__(self, torch: Any, hugging: Any, model: Any, device: Any, ends: Collection[int]) -> None:
        self._torch, self._model, self._device = torch, model, device
        self._ends = torch.tensor(sorted(ends), dtype=torch.long, device=device)
        self._keep = "logits_to_keep" in inspect.signature(model.forward).parameters
        self._cache = _slot_cache(hugging, self)
        self._write: Callable[..., Any] = _unset
        """Writes the new keys and values of a layer, and returns those to attend to."""
        self._graphs: dict[tuple[int, int], Any] = {}
        self._pool: Any = None
        self.slots = self.length = 0
        self.restore = _use_grouped_attention(torch, hugging, model)
        """Gives the model its own attention back."""

    def bytes_per_token(self, hugging: Any, length: int) -> int:
        """Find out what the model caches; raises Unfit."""
        cache = hugging.DynamicCache(config=self._model.config)
        tokens = self._torch.zeros((1, 2), dtype=self._torch.long, device=self._device)
        self._model(input_ids=tokens, past_key_values=cache, use_cache=True)
        for layer in cache.layers:
            window = getattr(layer, "sliding_window", None) or 0
            if type(layer).__name__ != "DynamicLayer" and window < length:
                raise Unfit(f"it has a {type(layer).__name__}" + (f" of {window} tokens" if window else ""))
        shapes = {tuple(part.shape) for layer in cache.layers for part in (layer.keys, layer.values)}
        if len(shapes) != 1:
            raise Unfit("its layers differ in the shape of keys and values")
        (_, self._heads, _, self._dim), self._layers = shapes.pop(), len(cache.layers)
        return int(self._layers * 2 * self._heads * self._dim * self._model.dtype.itemsize)

    def allocate(self, slots: int, length: int) -> None:
        torch, device = self._torch, self._device
        self.slots, self.length = slots, length
        shape = (self._layers, 2, slots, self._heads, length, self._dim)
        # Zeros: what is masked is multiplied by 0, which would not remove a NaN of uninitialised memory.
        self._kv = torch.zeros(shape, dtype=self._model.dtype, device=device)
        self._tokens = torch.zeros(slots, dtype=torch.long, device=device)
        self._positions = torch.zeros(slots, dtype=torch.long, device=device)
        self._rows = torch.arange(slots, device=device)
        self._logits = torch.zeros((slots, self._model.config.get_text_config().vocab_size), device=device)

    def warm_up(self, log: logging.Logger, budget: int) -> None:
        """Compute what requests will compute, and capture the graphs."""
        if self._device.type == "cuda":
            try:
                self._capture()
            except Exception as error:
                self._graphs = {}
                log.warning("decoding without CUDA graphs, more slowly: %s", " ".join(str(error).split())[:300])
        for rows, size in ((1, 16), (1, 128), (4, 128), (8, 128), (1, budget), (4, budget // 4)):
            if rows <= self.slots and size < self.length:
                self.prefill(list(range(rows)), [[0] * size] * rows, 0, np.zeros((rows, 5), np.float32))
                self.decode([size] * rows, np.ones((rows, 5), np.float32)).tolist()

    # --- prompts ---

    def prefill(self, slots: list[int], chunks: list[list[int]], start: int, controls: Controls | None) -> Any:
        """Write chunks of prompts, several from the beginning or one from `start`. Return the next tokens."""
        torch, size = self._torch, max(map(len, chunks))
        tokens = torch.tensor([one + [0] * (size - len(one)) for one in chunks], device=self._device)
        rows = torch.tensor(slots, device=self._device)
        positions = torch.arange(start, start + size, device=self._device)
        mask = None
        if start:  # padding is always behind a prompt, so new prompts need only the causal mask
            mask = self._mask(positions, start + size)[None, None]
            self._write = _continue(slots[0], start, start + size)
        else:
            self._write = _begin(rows, size)
        last = [len(one) - 1 for one in chunks]
        kept = sorted(set(last))
        where = torch.tensor(kept, device=self._device)
        logits = self._forward(tokens, positions.expand(len(slots), size), mask, where)
        logits = logits[torch.arange(len(slots), device=self._device), [kept.index(one) for one in last]]
        chosen = self._chosen(logits.float(), controls)
        self._tokens[rows] = chosen
        return chosen

    # --- one token for every slot ---

    def decode(self, positions: list[int], controls: Controls | None) -> Any:
        """Add a token to the first slots, at these positions (-1: not to this slot). Return the next tokens."""
        count, length = len(positions), max(positions) + 1
        if self._graphs:
            count = next(size for size in _sizes(self.slots) if size >= count)
            length = next(size for size in _lengths(self.length) if size >= length)
        # Unused rows write to the last position, which a text reads only after writing it.
        unused, padding = self.length - 1, [-1] * (count - len(positions))
        padded = self._torch.tensor([unused if one < 0 else one for one in positions + padding])
        if self._device.type == "cuda":
            padded = padded.pin_memory()
        self._positions[:count].copy_(padded, non_blocking=True)
        graph = self._graphs.get((count, length))
        if graph is None:
            self._decode(count, length)
        else:
            graph.replay()
        if controls is not None:
            self._tokens[: len(positions)] = self._chosen(self._logits[: len(positions)], controls)
        return self._tokens[: len(positions)].clone()  # the next step overwrites it

    def _decode(self, count: int, length: int) -> None:
        positions = self._positions[:count]
        self._write = _add(self._rows[:count], positions, count, length)
        mask = self._mask(positions[:, None], length)[:, None]
        logits = self._forward(self._tokens[:count, None], positions[:, None], mask, 1)[:, -1]
        self._logits[:count] = logits
        self._tokens[:count] = logits.argmax(-1)

    def move(self, source: int, target: int, size: int) -> None:
        """Move a text to another slot."""
        self._kv[:, :, target, :, :size] = self._kv[:, :, source, :, :size]
        self._tokens[target] = self._tokens[source]

    def release(self, slot: int) -> None: ...

    def logits(self, count: int) -> Any:
        return self._logits[:count]

    # --- helpers ---

    def _forward(self, tokens: Any, positions: Any, mask: Any, keep: Any) -> Any:
        more = {"logits_to_keep": keep} if self._keep else {}
        made = self._model(
            input_ids=tokens,
            position_ids=positions,
            attention_mask=mask,
            past_key_values=self._cache,
            use_cache=True,
            **more,
        ).logits
        return made if self._keep or isinstance(keep, int) else made[:, keep]

    def _mask(self, positions: Any, length: int) -> Any:
        """Return the additive mask [..., positions, length] with which each position attends to all up to itself."""
        torch, dtype = self._torch, self._model.dtype
        is_ahead = torch.arange(length, device=self._device) > positions[..., None]
        return torch.zeros(is_ahead.shape, dtype=dtype, device=self._device).masked_fill(
            is_ahead, torch.finfo(dtype).min
        )

    def _chosen(self, logits: Any, controls: Controls | None) -> Any:
        if controls is None:
            return logits.argmax(-1)
        given = self._torch.from_numpy(controls).to(self._device, non_blocking=True)
        return sample(self._torch, logits, given, self._ends)

    def _capture(self) -> None:
        torch = self._torch
        sizes = [(count, length) for length in _lengths(self.length) for count in _sizes(self.slots)]
        for count, length in reversed(sizes):  # the largest first: the others fit into its memory
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                self._decode(count, length)
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                self._decode(count, length)
            self._pool = self._pool or graph.pool()
            self._graphs[count, length] = graph


def _sizes(slots: int) -> list[int]:
    return sorted({size for size in (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256) if size < slots} | {slots})


def _lengths(length: int) -> list[int]:
    return sorted({_LENGTHS << i for i in range(16) if _LENGTHS << i < length} | {length})


def _slot_cache(hugging: Any, decoder: Any) -> Any:
    class SlotCache(hugging.Cache):  # type: ignore[misc]
        """What transformers calls with the new keys and values of each layer; to it, the cache is always empty."""

        is_sliding, is_compileable = (False,), False

        def update(self, keys: Any, values: Any, layer_idx: int, *_: Any, **__: Any) -> Any:
            return decoder._write(*decoder._kv[layer_idx].unbind(0), keys, values)

        def get_seq_length(self, *_: Any, **__: Any) -> int:
            return 0

        def get_query_offset(self, *_: Any, **__: Any) -> int:
            return 0

        def get_mask_sizes(self, query: Any, *_: Any, **__: Any) -> tuple[int, int]:
            return query if isinstance(query, int) else len(query), 0  # older versions pass the positions

    return SlotCache(layers=[])


def _unset(*_: Any) -> Any:
    raise AssertionError


def _begin(rows: Any, size: int) -> Callable[..., Any]:
    def write(all_keys: Any, all_values: Any, keys: Any, values: Any) -> Any:
        all_keys[rows, :, :size], all_values[rows, :, :size] = keys, values
        return keys, values

    return write


def _continue(slot: int, start: int, end: int) -> Callable[..., Any]:
    def write(all_keys: Any, all_values: Any, keys: Any, values: Any) -> Any:
        all_keys[slot, :, start:end], all_values[slot, :, start:end] = keys[0], values[0]
        return all_keys[slot : slot + 1, :, :end], all_values[slot : slot + 1, :, :end]

    return write


def _add(rows: Any, positions: Any, count: int, length: int) -> Callable[..., Any]:
    def write(all_keys: Any, all_values: Any, keys: Any, values: Any) -> Any:
        all_keys[rows, :, positions], all_values[rows, :, positions] = keys[:, :, 0], values[:, :, 0]
        return all_keys[:count, :, :length], all_values[:count, :, :length]

    return write


def _use_grouped_attention(torch: Any, hugging: Any, model: Any) -> Callable[[], None]:
    """For single tokens, attend with all query heads of a key head at once: transformers copies keys and values for
    each query head if there is a mask."""
    if getattr(model.config, "_attn_implementation", "") != "sdpa":
        return lambda: None
    attend = torch.nn.functional.scaled_dot_product_attention

    def attention(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **more: Any) -> Any:
        known = all(more.get(name) is None for name in ("softcap", "position_bias", "s_aux"))
        if query.shape[2] > 1 or attention_mask is None or not known:
            return hugging.AttentionInterface()["sdpa"](module, query, key, value, attention_mask, **more)
        batch, heads, _, size = query.shape
        grouped = query.reshape(batch, key.shape[1], -1, size)
        made = attend(grouped, key, value, attn_mask=attention_mask, scale=more.get("scaling"))
        return made.reshape(batch, 1, heads, made.shape[-1]), None

    hugging.AttentionInterface.register(_ATTENTION, attention)
    hugging.AttentionMaskInterface.register(_ATTENTION, hugging.AttentionMaskInterface()["sdpa"])
    model.set_attn_implementation(_ATTENTION)
    return lambda: model.set_attn_implementation("sdpa")


def check(torch: Any, model: Any, device: Any, decoder: SlotDecoder) -> None:
    """Raise Unfit unless slots give what the model itself computes, for two texts of different length."""
    vocabulary = model.config.get_text_config().vocab_size
    texts = [[7 * i % vocabulary for i in range(1, 6)], [5 * i % vocabulary for i in range(1, 4)]][: decoder.slots]
    slots = list(range(len(texts)))
    first = decoder.prefill(slots, texts, 0, None).tolist()
    decoder.decode([len(text) for text in texts], None)
    for slot, text in enumerate(texts):
        expected = model(input_ids=torch.tensor([[*text, first[slot]]], device=device)).logits[0, -1].float()
        if not float((decoder.logits(len(texts))[slot] - expected).abs().max()) < _TOLERANCE * float(expected.std()):
            raise Unfit("computed in slots, its results differ")


class SeparateDecoder:
    """Computes texts one after the other, with the model's own cache for each: for models that cannot use slots."""

    def __init__(self, torch: Any, hugging: Any, model: Any, device: Any, ends: Collection[int], slots: int) -> None:
        self._torch, self._hugging, self._model, self._device, self.slots = torch, hugging, model, device, slots
        self._ends = torch.tensor(sorted(ends), dtype=torch.long, device=device)
        self._caches: dict[int, Any] = {}
        self._tokens: dict[int, Any] = {}

    def prefill(self, slots: list[int], chunks: list[list[int]], start: int, controls: Controls | None) -> Any:
        made = []
        for row, (slot, chunk) in enumerate(zip(slots, chunks, strict=True)):
            if not start:
                self._caches[slot] = self._hugging.DynamicCache(config=self._model.config)
            made.append(self._next(slot, chunk, None if controls is None else controls[row : row + 1]))
        return self._torch.cat(made)

    def decode(self, positions: list[int], controls: Controls | None) -> Any:
        made = [
            self._next(slot, [int(self._tokens[slot])], None if controls is None else controls[slot : slot + 1])
            if position >= 0 else self._torch.zeros(1, dtype=self._torch.long, device=self._device)
            for slot, position in enumerate(positions)
        ]  # fmt: skip
        return self._torch.cat(made)

    def _next(self, slot: int, tokens: list[int], controls: Controls | None) -> Any:
        torch, cache = self._torch, self._caches[slot]
        given = torch.tensor([tokens], device=self._device)
        logits = self._model(input_ids=given, past_key_values=cache, use_cache=True).logits[:, -1].float()
        sampled = None if controls is None else torch.from_numpy(controls).to(self._device)
        self._tokens[slot] = logits.argmax(-1) if sampled is None else sample(torch, logits, sampled, self._ends)
        return self._tokens[slot]

    def move(self, source: int, target: int, size: int) -> None:
        self._caches[target], self._tokens[target] = self._caches.pop(source), self._tokens.pop(source)

    def release(self, slot: int) -> None:
        self._caches.pop(slot, None)

    def warm_up(self, log: logging.Logger, budget: int) -> None:
        self.prefill([0], [[0] * 8], 0, None)
        self.decode([8], None)
        self.release(0)
