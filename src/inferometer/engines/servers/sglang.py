"""SGLang: `python -m sglang.launch_server`."""

from inferometer.engines.launching import (
    Launch,
    ServerEngine,
    Start,
    dashed,
    flags,
    interpreter,
    known_facts,
    local_model,
    visible_gpus,
)

_INSTALL = "pip install sglang"
_RUN = "import sglang; print(sglang.__version__)"


def _launch(start: Start) -> Launch:
    spec, args = start.spec, dashed(start.spec.args)
    python, model = interpreter(spec, "sglang", _INSTALL), local_model(start.model)
    device = spec.device.partition(":")[0] if spec.device else None
    own = {"model-path": model, "host": "127.0.0.1", "port": start.port}
    return Launch(
        command=(python, "-m", "sglang.launch_server", *flags(args, {"dtype": spec.dtype, "device": device}, own)),
        url=f"http://127.0.0.1:{start.port}",
        env=visible_gpus(spec.device) | {"SGLANG_TORCH_PROFILER_DIR": str(start.folder.resolve() / "profile")},
        server={"model": str(args.get("served-model-name", model))},
        milestones=_MILESTONES,
        reset_cache="/flush_cache",
        profiler=("/start_profile", "/stop_profile"),
        facts=known_facts(
            dtype=args.get("dtype", spec.dtype),
            max_length=args.get("context-length"),
            prefix_cache=not args.get("disable-radix-cache", False),
            speculation=args.get("speculative-algorithm", False),
            chat_template=args.get("chat-template", "the model's"),
            device=spec.device,
            parallelism=args.get("tp", args.get("tp-size", args.get("tensor-parallel-size"))),
        ),
        fact_lines=_FACT_LINES,
        version=(python, "-c", _RUN),
    )


_MILESTONES = (
    ("imported", r"server_args="),
    ("weights loaded", r"Load weight end"),
    ("graphs captured", r"Capture .*(cuda|CUDA) graph end"),
    ("initialised", r"max_total_num_tokens="),
    ("listening", r"Application startup complete|Uvicorn running on"),
    ("warmed up", r"The server is fired up"),
)
_FACT_LINES = (
    ("dtype", r"Load weight end\..* dtype=([\w.]+)"),
    ("max length", r"max_total_num_tokens=.*\bcontext_len=(\d+)"),
    ("device", r"server_args=.*\bdevice'?[=:] ?'(\w+)'"),
    ("parallelism", r"server_args=.*\btp_size'?[=:] ?(\d+)"),
)

ENGINE = ServerEngine(_launch, _INSTALL)
