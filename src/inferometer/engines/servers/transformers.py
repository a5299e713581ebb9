"""transformers: `transformers serve`, plain or with `args: {continuous-batching: true}`."""

from inferometer.engines.launching import Launch, ServerEngine, Start, dashed, flags, known_facts, local_model, program

_INSTALL = "pip install 'transformers[serving]' torch"


def _launch(start: Start) -> Launch:
    spec, args = start.spec, dashed(start.spec.args)
    transformers, model = program(spec, "transformers", _INSTALL), local_model(start.model)
    defaults = {"dtype": spec.dtype, "device": spec.device, "compile": spec.compile}
    return Launch(
        command=(transformers, "serve", model, *flags(args, defaults, {"host": "127.0.0.1", "port": start.port})),
        url=f"http://127.0.0.1:{start.port}",
        server={"model": model, "ignore_eos": False},  # it refuses that field with 422
        milestones=_MILESTONES,
        facts=known_facts(
            dtype=args.get("dtype", spec.dtype),
            prefix_cache=bool(args.get("continuous-batching")),
            speculation=False,
            chat_template="the model's",
            device=args.get("device", spec.device),
            parallelism=1,
            ignore_eos="not supported",
        ),
        version=(transformers, "version"),
    )


_MILESTONES = (
    ("imported", r"^\[transformers\] Loading "),
    ("weights loaded", r"Loading weights: 100%"),
    ("listening", r"Application startup complete"),
)

ENGINE = ServerEngine(_launch, _INSTALL)
