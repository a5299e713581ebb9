"""From a definition to a model that is ready: loads it once per instance, completes its configuration, warms it up.

Loading runs in a thread, so that other models continue. A model that fails to load raises UserError with the reason.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from inferometer.errors import UserError
from inferometer.serve import backends
from inferometer.serve.models import configs
from inferometer.serve.models.model import Model
from inferometer.serve.models.repository import Definition
from inferometer.serve.models.types import Loaded, Loading, reason
from inferometer.serve.threads import in_thread
from inferometer.tensors import TensorSpec, zeros

if TYPE_CHECKING:
    from inferometer.serve.models.registry import Models


def wants_process(definition: Definition, is_shared: bool) -> bool:
    """Whether a model runs in a process of its own: if its parameter `process` is 1 or, unless it is 0, if several front
    ends share the model and its backend loads weights."""
    if definition.loader is not None:
        return False
    default = "1" if is_shared and definition.backend in backends.EXTRAS else "0"
    wanted = configs.parameter(definition.config, "process", default)
    if wanted not in ("0", "1"):
        raise UserError(f"model {definition.name}: parameter process must be 1 or 0 (got {wanted!r:.60})")
    return wanted == "1"


async def bring_up(definition: Definition, models: "Models") -> Model:
    name, config = definition.name, definition.config
    if config.max_batch_size < 0:
        raise UserError(f"model {name}: max_batch_size must be at least 0 (got {config.max_batch_size})")
    loaded: list[Loaded] = []
    try:
        for i, device in enumerate(configs.devices(config, models.device)):
            loading = Loading(name, config, definition.folder, definition.file, device, i)
            loaded.append(await in_thread(_load, definition, loading))
        _complete(definition, config, models.device)
        platform = config.platform or backends.PLATFORMS.get(definition.backend, definition.backend)
        return Model(
            models, name, definition.version, config, platform=platform, loaded=loaded, labels=definition.labels
        )
    except BaseException:
        for each in loaded:
            each.close()
        raise


def _load(definition: Definition, loading: Loading) -> Loaded:
    """Load and warm up an instance."""
    try:
        loaded = (definition.loader or backends.loader(definition.backend))(loading)
        inputs = configs.facts(loading.config).inputs
    except ImportError as error:
        raise backends.missing(definition.backend, error) from None
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise UserError(f"model {loading.name} failed to load: {reason(error).message}") from None
    try:
        if loading.parameter("warmup", "1") != "0":
            _warm_up(loaded, inputs)
    except (Exception, SystemExit) as error:
        loaded.close()
        what = f"model {loading.name} failed its warm-up: {reason(error).message}"
        raise UserError(what, "parameters.warmup=0 disables the warm-up") from None
    return loaded


def _warm_up(loaded: Loaded, specs: Sequence[TensorSpec]) -> None:
    """Run one row of zeros; the first response of a stream is enough. Skipped for models that need a text, because
    valid text is unknown, and for models that run in the loop, which have nothing to warm up."""
    needed = [spec for spec in specs if spec.datatype != "BYTES" or not spec.optional]
    if loaded.run is None or not needed or any(spec.datatype == "BYTES" for spec in needed):
        return
    sizes = [(spec.name, spec.datatype, [1 if size < 0 else size for size in spec.shape]) for spec in needed]
    try:
        made = loaded.run({size[0]: zeros(*size) for size in sizes}, {})
        if not isinstance(made, dict):
            next(iter(made), None)
            if close := getattr(made, "close", None):
                close()
    except Exception as error:
        if reason(error).code != "INVALID_ARGUMENT":  # refusing zeros is a valid response
            raise


def _complete(definition: Definition, config: Any, device: str) -> None:
    """Add the defaults that Triton's configurations contain."""
    config.name = definition.name
    config.backend = config.backend or definition.backend
    if not config.instance_group:
        config.instance_group.add(kind="KIND_GPU" if device.startswith("cuda") else "KIND_CPU", name=definition.name)
    for i, group in enumerate(config.instance_group):
        group.name = group.name or f"{definition.name}_{i}"
        group.count = group.count or 1
    if not config.version_policy.WhichOneof("policy_choice"):
        config.version_policy.latest.num_versions = 1
