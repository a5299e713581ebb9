"""Text Generation Inference: `text-generation-launcher`, which is part of its container image or built from source."""

from inferometer.engines.launching import (
    Launch,
    ServerEngine,
    Start,
    dashed,
    flags,
    free_port,
    known_facts,
    local_model,
    program,
    visible_gpus,
)

_NAME = "text-generation-launcher"
_INSTALL = "install text-generation-inference (its container image, or from source)"


def _launch(start: Start) -> Launch:
    spec, args = start.spec, dashed(start.spec.args)
    launcher, model = program(spec, _NAME, _INSTALL), local_model(start.model)
    own = {"model-id": model, "hostname": "127.0.0.1", "port": start.port}
    defaults = {
        "dtype": spec.dtype,
        "disable-custom-kernels": spec.device == "cpu",  # they are CUDA kernels
        "master-port": free_port(),
        "prometheus-port": free_port(),
    }
    return Launch(
        command=(launcher, *flags(args, defaults, own)),
        url=f"http://127.0.0.1:{start.port}",
        env=visible_gpus(spec.device),
        server={"model": model, "ignore_eos": False},  # its OpenAI endpoints do not know that field
        milestones=_MILESTONES,
        facts=known_facts(
            dtype=args.get("dtype", spec.dtype),
            max_length=args.get("max-total-tokens"),
            prefix_cache=_prefix_cache(spec.env),
            speculation=args.get("speculate", False),
            chat_template="the model's",
            device=spec.device,
            parallelism=args.get("num-shard"),
            ignore_eos="not supported",
        ),
        fact_lines=_FACT_LINES,
        version=(launcher, "--version"),
    )


def _prefix_cache(env: dict[str, str]) -> bool | None:
    given = env.get("PREFIX_CACHING", env.get("USE_PREFIX_CACHING"))
    return None if given is None else given.lower() in ("1", "true")


_MILESTONES = (
    ("weights downloaded", r"Successfully downloaded weights"),
    ("weights loaded", r"Shard ready in"),
    ("graphs captured", r"Cuda Graphs are enabled"),
    ("initialised", r"Setting max batch total tokens to"),
    ("listening", r"text_generation_router::server.*Connected"),
)
_FACT_LINES = (
    ("max length", r"Default `max_total_tokens` to (\d+)"),
    ("prefix cache", r"Using prefix caching = (\w+)"),
)

ENGINE = ServerEngine(_launch, _INSTALL)
