"""vLLM: `vllm serve`."""

from typing import Any

from inferometer.engines.launching import (
    Launch,
    ServerEngine,
    Start,
    dashed,
    flags,
    known_facts,
    local_model,
    program,
    visible_gpus,
)

_INSTALL = "pip install vllm"


def _launch(start: Start) -> Launch:
    spec, args = start.spec, dashed(start.spec.args)
    vllm, model = program(spec, "vllm", _INSTALL), local_model(start.model)
    profiler = {"profiler": "torch", "torch_profiler_dir": str(start.folder.resolve() / "profile")}
    defaults = {"dtype": spec.dtype, "profiler-config": profiler if start.is_profiled else None}
    can_profile = start.is_profiled or "profiler-config" in args or "VLLM_TORCH_PROFILER_DIR" in spec.env
    return Launch(
        command=(vllm, "serve", model, *flags(args, defaults, {"host": "127.0.0.1", "port": start.port})),
        url=f"http://127.0.0.1:{start.port}",
        env=visible_gpus(spec.device) | {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1"},
        server={"model": _served_name(args, model)},
        milestones=_MILESTONES,
        reset_cache="/reset_prefix_cache",
        profiler=("/start_profile", "/stop_profile") if can_profile else ("", ""),
        facts=known_facts(
            dtype=args.get("dtype", spec.dtype),
            max_length=args.get("max-model-len"),
            prefix_cache=args.get("enable-prefix-caching"),
            speculation=args.get("speculative-config"),
            chat_template=args.get("chat-template", "the model's"),
            device=spec.device,
            parallelism=args.get("tensor-parallel-size"),
        ),
        fact_lines=_FACT_LINES,
        version=(vllm, "--version"),
    )


def _served_name(args: dict[str, Any], model: str) -> str:
    given = args.get("served-model-name", model)
    return str(given).split()[0]


_MILESTONES = (
    ("imported", r"vLLM (API server )?version|non-default args"),
    ("weights loaded", r"Loading weights took|Model loading took"),
    ("compiled", r"torch\.compile (takes|took|and .* took) .* in total|Warming up done\."),
    ("graphs captured", r"Graph capturing finished"),
    ("initialised", r"init engine \(profile, create kv cache, warmup model\) took"),
    ("listening", r"Application startup complete"),
)
_ENGINE = r"Initializing an? (?:V1 )?LLM engine .*"
_FACT_LINES = (
    ("dtype", _ENGINE + r"[ (]dtype=([\w.]+)"),
    ("max length", _ENGINE + r"[ (]max_seq_len=(\d+)"),
    ("prefix cache", _ENGINE + r"[ (]enable_prefix_caching=(\w+)"),
    ("speculation", _ENGINE + r"[ (]speculative_config=(None|.+?), tokenizer="),
    ("device", _ENGINE + r"[ (]device_config=(\w+)"),
    ("parallelism", _ENGINE + r"[ (]tensor_parallel_size=(\d+)"),
    ("quantization", _ENGINE + r"[ (]quantization=(\w+)"),
)

ENGINE = ServerEngine(_launch, _INSTALL)
