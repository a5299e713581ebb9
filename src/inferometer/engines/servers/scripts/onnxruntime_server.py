"""Serves a folder of ONNX Runtime GenAI with its Engine: `python onnxruntime_server.py --model FOLDER --port 8000`."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime_genai as genai
from openai_front import Event, Sampling, serve

_FINISH = {
    genai.FinishReason.NONE: "",
    genai.FinishReason.EOS: "stop",
    genai.FinishReason.STOP_STRING: "stop",
    genai.FinishReason.MAX_GENERATED_TOKENS: "length",
    genai.FinishReason.MAX_SESSION_TOKENS: "length",
}
_EVENTS = 1024


class _Engine:
    """openai_front.Engine with ONNX Runtime."""

    def __init__(self, options: argparse.Namespace) -> None:
        config = genai.Config(options.model)
        if options.provider:
            config.clear_providers()
            if options.provider != "cpu":
                config.append_provider(options.provider)
        config.overlay(json.dumps({"engine": {"static_batching": {"max_batch_size": options.max_batch_size}}}))
        if options.threads:
            session = {"session_options": {"intra_op_num_threads": options.threads}}
            config.overlay(json.dumps({"model": {"decoder": session}}))
        self._model = genai.Model(config)
        self._engine, self._tokenizer = genai.Engine(self._model), genai.Tokenizer(self._model)
        self._buffer = self._engine.create_event_buffer(_EVENTS)
        model = json.loads(Path(options.model, "genai_config.json").read_text())["model"]
        self.context = options.max_model_len or model["context_length"]
        self._requests: dict[int, tuple[Any, int]] = {}

    def encode(self, text: str, is_chat: bool) -> list[int]:
        return [int(token) for token in self._tokenizer.encode(text)]

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(np.array(ids, np.int32)))

    def render(self, messages: list[dict[str, Any]]) -> str:
        return str(self._tokenizer.apply_chat_template(json.dumps(messages), add_generation_prompt=True))

    def add(self, ids: Sequence[int], sampling: Sampling) -> int:
        request = self._engine.create_request()
        options = genai.TurnOptions(request)
        options.set_max_generated_tokens(sampling.max_tokens)
        if sampling.ignore_eos:
            options.set_min_generated_tokens(sampling.max_tokens)  # it has no other way: the end is masked until then
        options.set_do_sample(sampling.temperature > 0)
        if sampling.temperature > 0:
            options.set_temperature(sampling.temperature)
            options.set_top_p(sampling.top_p)
            if sampling.seed is not None:
                options.set_seed(sampling.seed)
        self._requests[id(request)] = (request, request.begin_turn(np.array(ids, np.int32), options))
        return id(request)

    def cancel(self, key: int) -> None:
        request, turn = self._requests.pop(key)
        request.cancel_turn(turn)
        request.close()

    def step(self) -> list[Event]:
        self._engine.run(self._buffer)
        events = []
        for index in range(len(self._buffer)):
            event = self._buffer[index]
            key, flags = id(event.request), event.flags.value
            if key not in self._requests:  # it was cancelled
                continue
            finish = _FINISH.get(event.finish_reason, f"error: {event.finish_reason.name} {event.error_code.name}")
            if flags & genai.EngineEventFlags.FAILED.value:
                finish = f"error: {event.error_code.name}"
            token = int(event.token) if flags & genai.EngineEventFlags.TOKEN.value else None
            if token is None and not finish:
                continue
            events.append(Event(key, token, finish))
            if finish:
                self._requests.pop(key)[0].close()
        return events


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"ONNX Runtime GenAI {genai.__version__}")
    parser.add_argument("--model", required=True)
    parser.add_argument("--served-model-name")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--provider", help="cpu, cuda, ...; default: that of genai_config.json")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--max-model-len", type=int)
    parser.add_argument("--max-batch-size", type=int, default=16)
    options = parser.parse_args()
    engine = _Engine(options)
    print("Model loaded", flush=True)
    serve(engine, options.served_model_name or Path(options.model).name, options.host, options.port)


if __name__ == "__main__":
    main()
