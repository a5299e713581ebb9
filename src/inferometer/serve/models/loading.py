"""From a definition to a model that is ready: loads it once per instance, completes its configuration, warms it up.

Loading runs in a thread, so that other models continue. A model that fails to load raises UserError with the reason.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from inferometer.errors import UserError
from inferometer.serve import backends
from inferometer.serve.models import configs
from inferometer.serve.models.execution import Instance, reason
from inferometer.serve.models.model import Model
from inferometer.serve.models.overrides import override
from inferometer.serve.models.queue import QueueClock
from inferometer.serve.models.repository import Definition
from inferometer.serve.models.shared_memory import Regions
from inferometer.serve.models.types import Loaded, Loading, ModelSignature
from inferometer.serve.threads import in_thread
from inferometer.tensors import TensorSpec, zeros


async def bring_up(
    definition: Definition,
    overrides: tuple[str, ...],
    device: str,
    *,
    regions: Regions,
    clock: QueueClock,
    over: Callable[[], None],
    elsewhere: Callable[[Definition, str, tuple[str, ...]], Awaitable[Model | None]] | None = None,
) -> Model:
    """Return the model; it is that of `elsewhere` if that returns one, because it has a process of its own."""
    loop = asyncio.get_running_loop()
    config = definition.config
    for text in overrides if definition.loader is None else ():
        override(config, text)
    if config.max_batch_size < 0:
        raise UserError(f"model {definition.name}: max_batch_size must be at least 0 (got {config.max_batch_size})")
    if (
        elsewhere is not None
        and definition.loader is None
        and (model := await elsewhere(definition, device, overrides))
    ):
        return model
    loaded: list[Loaded] = []
    try:
        for i, place in enumerate(configs.devices(config, device)):
            loading = Loading(definition.name, config, definition.folder, definition.file, place, i)
            loaded.append(await in_thread(_load, definition, loading))
        facts = configs.facts(config)
        instances = [Instance(each, loop, f"{definition.name} {i}") for i, each in enumerate(loaded)]
        if configs.parameter(config, "warmup", "1") != "0":
            for each in loaded:
                await _warm_up(definition.name, each, facts)
        _complete(definition, config, device)
        return Model(
            name=definition.name,
            version=definition.version,
            config=config,
            facts=facts,
            labels=_labels(definition, loaded),
            platform=config.platform or backends.PLATFORMS.get(definition.backend, definition.backend),
            policy=configs.policy(config),
            default_timeout_ns=configs.timeout_ns(config),
            instances=instances,
            regions=regions,
            clock=clock,
            over=over,
        )
    except BaseException:
        for each in loaded:
            each.close()
        raise


def _load(definition: Definition, loading: Loading) -> Loaded:
    try:
        return (definition.loader or backends.loader(definition.backend))(loading)
    except ImportError as error:
        raise backends.missing(definition.backend, error) from None
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise UserError(f"model {loading.name} failed to load: {reason(error).message}") from None


def _labels(definition: Definition, loaded: list[Loaded]) -> Mapping[str, tuple[str, ...]]:
    return {**loaded[0].labels, **definition.labels}


def _complete(definition: Definition, config: Any, device: str) -> None:
    """Add the defaults that Triton's configurations contain."""
    config.name = definition.name
    if not config.backend:
        config.backend = definition.backend
    if not config.instance_group:
        config.instance_group.add(
            name=definition.name, count=1, kind="KIND_GPU" if device.startswith("cuda") else "KIND_CPU"
        )
    for i, group in enumerate(config.instance_group):
        group.name = group.name or f"{definition.name}_{i}"
        group.count = group.count or 1
    if not config.version_policy.WhichOneof("policy_choice"):
        config.version_policy.latest.num_versions = 1


# --- warm-up ---------------------------------------------------------------------------------------------------------


async def _warm_up(name: str, loaded: Loaded, facts: ModelSignature) -> None:
    """Run one execution with zeros. Skipped for models with text inputs, because valid text is unknown, and for models
    that run in the loop, which have nothing to warm up."""
    if loaded.run is None or any(spec.datatype == "BYTES" and not spec.optional for spec in facts.inputs):
        return
    specs = [spec for spec in facts.inputs if spec.datatype != "BYTES"]
    if not specs:
        return
    try:
        await in_thread(_run, loaded, specs)
    except Exception as error:
        why = reason(error)
        if why.code != "INVALID_ARGUMENT":  # refusing zeros is a valid response
            raise UserError(
                f"model {name} failed its warm-up: {why.message}",
                "parameters.warmup=0 disables the warm-up",
            ) from None


def _run(loaded: Loaded, specs: list[TensorSpec]) -> None:
    """Run once; the first response of a stream is enough."""
    assert loaded.run is not None
    inputs = {
        spec.name: zeros(spec.name, spec.datatype, [size if size >= 0 else 1 for size in spec.shape]) for spec in specs
    }
    try:
        answers = loaded.run(inputs, {})
        if isinstance(answers, dict):
            return
        next(iter(answers), None)
        if close := getattr(answers, "close", None):
            close()
    except SystemExit as error:
        raise RuntimeError(f"SystemExit: {error}") from None
