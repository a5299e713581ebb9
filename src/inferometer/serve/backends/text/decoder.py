"""Computes tokens for many texts at once: one forward pass per step for all of them.

Keys and values live in one tensor with a fixed number of slots of a fixed length. A text has a slot; its prompt is
written there in chunks (`prefill`), then each step adds one token to every running text (`decode`), each at its own
position. On GPUs the decode step is a CUDA graph per batch size and length, since at these sizes the launches of a
thousand small kernels take longer than the kernels. Tokens stay on the device between steps.
"""

import logging
from typing import Any

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import AttentionInterface, AttentionMaskInterface, Cache, DynamicCache

_SIZES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
_LENGTHS = tuple(256 << i for i in range(16))
"""Batch sizes and lengths of the captured graphs."""
_PROMPTS = ((1, 16), (1, 128), (4, 128), (8, 128), (1, 512), (4, 512))
"""Texts and tokens of the prompts for the warm-up."""
_READ = {"cuda": 2048}
"""Tokens of prompts that are read between two steps, during which running texts wait; 128 on CPUs."""
_TOLERANCE = 0.25
"""Share of the logits' standard deviation by which they may differ: rounding differs less, a wrong position more."""
_KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""For prompts: all but cuDNN's, which takes 65 ms to prepare for each new length."""
_ATTENTION = "inferometer_slots"
_ALL = slice(None)
_log = logging.getLogger("inferometer.serve")
Controls = np.ndarray[Any, Any]
"""float32 [rows, 5]: temperature, top_p, top_k, a random number in [0, 1), and whether end-of-text tokens are excluded."""


class Decoder:
    """Computes one text after the other, with the model's own cache: for models that cannot use slots."""

    def __init__(self, model: Any, ends: frozenset[int], slots: int, length: int) -> None:
        self.model, self.device, self.ends = model, model.device, ends
        self.slots, self.length, self.budget = slots, length, _READ.get(model.device.type, 128)
        self.vocabulary: int = model.config.get_text_config().vocab_size
        self._end_tokens = self.tensor(sorted(ends))
        self._cache: Any = None
        self._tokens = self.tensor([0])
        if model.config._attn_implementation == _ATTENTION:
            model.set_attn_implementation("sdpa")

    def prefill(self, slots: list[int], chunks: list[list[int]], start: int, controls: Controls | None) -> Any:
        """Write chunks of prompts, several from the beginning or one from `start`. Return the next tokens."""
        if not start:
            self._cache = DynamicCache(config=self.model.config)
        return self._continue(self.tensor(chunks), controls)

    def decode(self, positions: list[int], controls: Controls | None) -> Any:
        """Add a token to the first slots, at these positions. Return the next tokens."""
        return self._continue(self._tokens[None], controls)

    def _continue(self, tokens: Any, controls: Controls | None) -> Any:
        logits = self.model(input_ids=tokens, past_key_values=self._cache, use_cache=True).logits[:, -1]
        self._tokens = self.chosen(logits, controls)
        return self._tokens

    def tensor(self, values: Any) -> Any:
        return torch.tensor(values, dtype=torch.long, device=self.device)

    def chosen(self, logits: Any, controls: Controls | None) -> Any:
        """Return a token per row, without waiting for the device."""
        if controls is None:
            return logits.argmax(-1)
        given = torch.from_numpy(controls).to(self.device, non_blocking=True)
        return sample(logits.float(), given, self._end_tokens)


def sample(logits: Any, controls: Any, ends: Any) -> Any:
    temperature, top_p, top_k, uniform, excludes = controls.unsqueeze(-1).unbind(1)
    if len(ends):
        logits[:, ends] = logits[:, ends].masked_fill(excludes > 0, float("-inf"))
    shares, order = (logits / temperature.clamp(min=1e-5)).softmax(-1).sort(-1, descending=True)
    rank = torch.arange(shares.shape[-1], device=shares.device)
    cut = (shares.cumsum(-1) - shares >= top_p) | ((rank >= top_k) & (top_k > 0))  # the first one is always kept
    summed = shares.masked_fill(cut, 0).cumsum(-1)
    index = (summed <= uniform * summed[:, -1:]).sum(-1, keepdim=True).clamp(max=shares.shape[-1] - 1)
    return torch.where(temperature > 0, order.gather(-1, index), logits.argmax(-1, keepdim=True))[:, 0]


class SlotDecoder(Decoder):
    """Computes many texts at once, in slots that take at most `memory` bytes, if necessary with fewer of them. Raises
    ValueError if the model keeps anything but keys and values of all positions."""

    def __init__(self, *given: Any, memory: float) -> None:
        super().__init__(*given)
        layers, heads, size = self._cached()
        dtype = self.model.dtype
        self.slots = max(1, min(self.slots, int(memory / (2 * layers * heads * self.length * size * dtype.itemsize))))
        # Zeros: what is masked is multiplied by 0, which would not remove a NaN of uninitialised memory.
        shape = (layers, 2, self.slots, heads, self.length, size)
        self.kv = torch.zeros(shape, dtype=dtype, device=self.device)
        self.index: Any = None  # where the new keys and values of a step are written
        self.view: Any = None  # what they attend to; None: to themselves
        self._tokens, self._positions = self.tensor([0] * self.slots), self.tensor([0] * self.slots)
        self._rows = torch.arange(self.slots, device=self.device)
        self.logits = torch.zeros((self.slots, self.vocabulary), device=self.device)
        self._cache = _SlotCache(self)
        self._graphs: dict[tuple[int, int], Any] = {}
        if self.model.config._attn_implementation == "sdpa":
            AttentionInterface.register(_ATTENTION, _grouped_attention)
            AttentionMaskInterface.register(_ATTENTION, AttentionMaskInterface()["sdpa"])
            self.model.set_attn_implementation(_ATTENTION)
        self._check()

    def _cached(self) -> tuple[int, int, int]:
        """Return the model's number of layers, of key heads, and their size."""
        cache = DynamicCache(config=self.model.config)
        self.model(input_ids=self.tensor([[0, 0]]), past_key_values=cache, use_cache=True)
        for layer in cache.layers:
            window = getattr(layer, "sliding_window", None) or 0
            if type(layer).__name__ != "DynamicLayer" and window < self.length:
                raise ValueError(f"it has a {type(layer).__name__} of {window} tokens")
        shapes = {tuple(part.shape) for layer in cache.layers for part in (layer.keys, layer.values)}
        if len(shapes) != 1:
            raise ValueError("its layers differ in the shape of keys and values")
        _, heads, _, size = shapes.pop()
        return len(cache.layers), heads, size

    def _check(self) -> None:
        """Raise ValueError unless slots give what the model itself computes, for two texts of different length."""
        texts = [[i % self.vocabulary for i in range(1, size)] for size in (6, 4)][: self.slots]
        first = self.prefill(list(range(len(texts))), texts, 0, None).tolist()
        self.decode([len(text) for text in texts], None)
        for text, token, logits in zip(texts, first, self.logits, strict=False):
            expected = self.model(input_ids=self.tensor([[*text, token]])).logits[0, -1].float()
            if not (logits - expected).abs().max() < _TOLERANCE * expected.std():
                raise ValueError("computed in slots, its results differ")

    def warm_up(self) -> None:
        """Capture the graphs, and compute what requests will compute."""
        if self.device.type == "cuda":
            try:
                self._capture()
            except Exception as error:
                self._graphs = {}
                _log.warning("decoding without CUDA graphs, more slowly: %s", " ".join(str(error).split())[:300])
        for rows, size in _PROMPTS:
            if rows <= self.slots and size < self.length:
                self.prefill(list(range(rows)), [[0] * size] * rows, 0, np.zeros((rows, 5), np.float32))
                self.decode([size] * rows, np.ones((rows, 5), np.float32)).tolist()

    def prefill(self, slots: list[int], chunks: list[list[int]], start: int, controls: Controls | None) -> Any:
        size = max(map(len, chunks))
        rows, positions = self.tensor(slots), torch.arange(start, start + size, device=self.device)
        if start:
            slot, end = slice(slots[0], slots[0] + 1), start + size
            self.index, self.view = (slot, _ALL, slice(start, end)), (slot, _ALL, slice(end))
            mask = self._mask(positions, end)
        else:  # the padding is behind the prompts, so they need only the causal mask
            self.index, self.view, mask = (rows, _ALL, slice(size)), None, None
        last = [len(one) - 1 for one in chunks]
        kept = sorted(set(last))
        tokens = self.tensor([one + [0] * (size - len(one)) for one in chunks])
        with sdpa_kernel(_KERNELS):
            logits = self._forward(tokens, positions.expand(len(slots), size), mask, self.tensor(kept))
        chosen = self.chosen(logits[self._rows[: len(slots)], self.tensor([kept.index(one) for one in last])], controls)
        self._tokens[rows] = chosen
        return chosen

    def decode(self, positions: list[int], controls: Controls | None) -> Any:
        rows, length = len(positions), max(positions) + 1
        count = rows
        if self._graphs:
            count, length = _next(_SIZES, rows, self.slots), _next(_LENGTHS, length, self.length)
        # Unused rows write to the last position, which a text reads only after writing it.
        padded = torch.tensor(positions + [self.length - 1] * (count - rows))
        padded = padded.pin_memory() if self.device.type == "cuda" else padded
        self._positions[:count].copy_(padded, non_blocking=True)
        if (count, length) in self._graphs:
            self._graphs[count, length].replay()
        else:
            self._decode(count, length)
        if controls is not None:
            self._tokens[:rows] = self.chosen(self.logits[:rows], controls)
        return self._tokens[:rows].clone()  # the next step overwrites it

    def _decode(self, count: int, length: int) -> None:
        positions, rows = self._positions[:count], self._rows[:count]
        self.index, self.view = (rows, _ALL, positions), (slice(count), _ALL, slice(length))
        mask = self._mask(positions[:, None], length)
        self.logits[:count] = self._forward(self._tokens[:count, None], positions[:, None], mask, 1)[:, -1]
        self._tokens[:count] = self.logits[:count].argmax(-1)

    def move(self, source: int, target: int, size: int) -> None:
        """Move a text to another slot."""
        self.kv[:, :, target, :, :size] = self.kv[:, :, source, :, :size]
        self._tokens[target] = self._tokens[source]

    def _forward(self, tokens: Any, positions: Any, mask: Any, keep: Any) -> Any:
        cached = {"past_key_values": self._cache, "use_cache": True, "logits_to_keep": keep}
        return self.model(input_ids=tokens, position_ids=positions, attention_mask=mask, **cached).logits

    def _mask(self, positions: Any, length: int) -> Any:
        """Return the additive mask [rows, 1, positions, length]: each position attends to all up to itself."""
        dtype = self.model.dtype
        is_ahead = torch.arange(length, device=self.device) > positions[..., None]
        mask = torch.zeros(is_ahead.shape, dtype=dtype, device=self.device)
        return mask.masked_fill(is_ahead, torch.finfo(dtype).min).reshape(-1, 1, *mask.shape[-2:])

    def _capture(self) -> None:
        cuda, pool = torch.cuda, None
        for length in sorted({_next(_LENGTHS, one, self.length) for one in _LENGTHS}, reverse=True):
            for count in sorted({_next(_SIZES, one, self.slots) for one in _SIZES}, reverse=True):
                stream = cuda.Stream()
                stream.wait_stream(cuda.current_stream())
                with cuda.stream(stream):
                    self._decode(count, length)
                cuda.current_stream().wait_stream(stream)
                graph = cuda.CUDAGraph()
                with cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                    self._decode(count, length)
                pool = pool or graph.pool()  # the largest is the first: the others fit into its memory
                self._graphs[count, length] = graph


def _next(sizes: tuple[int, ...], size: int, most: int) -> int:
    return min(next((one for one in sizes if one >= size), most), most)


class _SlotCache(Cache):  # type: ignore[misc]
    """What transformers calls with the new keys and values of each layer; to it, the cache is always empty."""

    is_sliding, is_compileable = (False,), False

    def __init__(self, decoder: SlotDecoder) -> None:
        super().__init__(layers=[])
        self._decoder = decoder

    def update(self, keys: Any, values: Any, layer_idx: int, *_: Any, **__: Any) -> Any:
        all_keys, all_values = self._decoder.kv[layer_idx].unbind(0)
        index, view = self._decoder.index, self._decoder.view
        is_chunk = isinstance(index[2], slice)
        all_keys[index] = keys if is_chunk else keys[:, :, 0]
        all_values[index] = values if is_chunk else values[:, :, 0]
        return (keys, values) if view is None else (all_keys[view], all_values[view])

    def get_seq_length(self, *_: Any, **__: Any) -> int:
        return 0

    get_query_offset = get_seq_length

    def get_mask_sizes(self, query: Any, *_: Any, **__: Any) -> tuple[int, int]:
        return query if isinstance(query, int) else len(query), 0  # older versions pass the positions


def _grouped_attention(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **more: Any) -> Any:
    """For single tokens, attend with all query heads of a key head at once: transformers copies keys and values for
    each query head if there is a mask."""
    is_plain = all(more.get(name) is None for name in ("softcap", "position_bias", "s_aux"))
    if query.shape[2] > 1 or attention_mask is None or not is_plain:
        return AttentionInterface()["sdpa"](module, query, key, value, attention_mask, **more)
    batch, heads, _, size = query.shape
    grouped = query.reshape(batch, key.shape[1], -1, size)
    attend = torch.nn.functional.scaled_dot_product_attention
    made = attend(grouped, key, value, attn_mask=attention_mask, scale=more.get("scaling"))
    return made.reshape(batch, 1, heads, -1), None
