"""What the parts of this folder exchange."""

from typing import Any

import msgspec

Spec = dict[str, Any]
"""An effective config of inference-perf: every key with its default, in the long spelling, as its config.yaml stores it. Secrets
are still in it: `reports` never writes them."""


class Translation(msgspec.Struct, frozen=True):
    """An effective config, translated."""

    config: dict[str, Any]
    """Our own config, as its YAML file would contain it. Its stages have the numbers of the stages of inference-perf."""
    notes: tuple[str, ...] = ()
    """What was translated to what, one sentence each, for the log."""
