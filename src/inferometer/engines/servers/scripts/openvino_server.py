"""Serves a folder of OpenVINO GenAI with its ContinuousBatchingPipeline: `python openvino_server.py --model FOLDER --port 8000`."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import openvino
import openvino_genai
from openai_front import Event, Sampling, serve

_DEFAULT_CONTEXT = 4096
_FINISH = {
    openvino_genai.GenerationFinishReason.STOP: "stop",
    openvino_genai.GenerationFinishReason.LENGTH: "length",
}


class _Pipeline:
    """openai_front.Engine with OpenVINO."""

    def __init__(self, options: argparse.Namespace) -> None:
        scheduler = openvino_genai.SchedulerConfig()
        for name in ("max_num_seqs", "max_num_batched_tokens", "cache_size"):
            if (value := getattr(options, name)) is not None:
                setattr(scheduler, name, value)
        scheduler.enable_prefix_caching = options.enable_prefix_caching
        properties = {
            "INFERENCE_PRECISION_HINT": options.inference_precision,
            "KV_CACHE_PRECISION": options.kv_cache_precision,
            "INFERENCE_NUM_THREADS": options.threads,
        }
        given = {name: value for name, value in properties.items() if value is not None}
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(options.model, scheduler, options.device, given)
        self._tokenizer = self._pipeline.get_tokenizer()
        self._eos: set[int] = set(self._pipeline.get_config().stop_token_ids) or {self._tokenizer.get_eos_token_id()}
        config = json.loads(Path(options.model, "config.json").read_text())
        self.context = options.max_model_len or config.get("max_position_embeddings", _DEFAULT_CONTEXT)
        self._handles: dict[int, Any] = {}
        self._last = 0

    def encode(self, text: str, is_chat: bool) -> list[int]:
        ids = self._tokenizer.encode(text, add_special_tokens=not is_chat).input_ids
        return [int(token) for token in ids.data[0]]

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids)))

    def render(self, messages: list[dict[str, Any]]) -> str:
        return str(self._tokenizer.apply_chat_template(messages, add_generation_prompt=True))

    def add(self, ids: Sequence[int], sampling: Sampling) -> int:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = sampling.max_tokens
        config.ignore_eos = sampling.ignore_eos
        config.stop_token_ids = self._eos
        if sampling.temperature > 0:
            config.do_sample = True
            config.temperature, config.top_p = sampling.temperature, sampling.top_p
            if sampling.seed is not None:
                config.rng_seed = sampling.seed
        self._last += 1
        tensor = openvino.Tensor(openvino.Type.i64, openvino.Shape([1, len(ids)]))
        tensor.data[:] = [list(ids)]
        self._handles[self._last] = self._pipeline.add_request(self._last, tensor, config)
        return self._last

    def cancel(self, key: int) -> None:
        self._handles.pop(key).cancel()

    def step(self) -> list[Event]:
        self._pipeline.step()
        events = []
        for key, handle in list(self._handles.items()):
            found = [self._event(key, output) for output in self._read(handle)]
            is_running = handle.get_status() == openvino_genai.GenerationStatus.RUNNING
            if not is_running and not (found and found[-1].finish):
                found.append(Event(key, None, "error: the pipeline did not complete this request"))
            if found and found[-1].finish:
                del self._handles[key]
            events += found
        return events

    def _read(self, handle: Any) -> list[Any]:
        outputs = []
        while handle.can_read():
            outputs += list(handle.read().values())
        return outputs

    def _event(self, key: int, output: Any) -> Event:
        ids = output.generated_ids
        return Event(key, int(ids[-1]) if ids else None, _FINISH.get(output.finish_reason, ""))


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"OpenVINO GenAI {openvino_genai.__version__}")
    parser.add_argument("--model", required=True)
    parser.add_argument("--served-model-name")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--device", default="CPU")
    parser.add_argument("--inference-precision", choices=("f32", "bf16", "f16"))
    parser.add_argument("--kv-cache-precision", choices=("f32", "bf16", "f16", "u8"))
    parser.add_argument("--threads", type=int)
    parser.add_argument("--max-model-len", type=int)
    parser.add_argument("--max-num-seqs", type=int)
    parser.add_argument("--max-num-batched-tokens", type=int)
    parser.add_argument("--cache-size", type=int, help="GB of keys and values")
    parser.add_argument("--enable-prefix-caching", action="store_true")
    options = parser.parse_args()
    engine = _Pipeline(options)
    print("Model loaded", flush=True)
    serve(engine, options.served_model_name or Path(options.model).name, options.host, options.port)


if __name__ == "__main__":
    main()
