"""The YAML file: one schema (schema.py), read with errors that name the key and the remedy (load.py)."""

from inferometer.config.load import from_mapping, read_tree
from inferometer.config.schema import Config

__all__ = ["Config", "from_mapping", "read_tree"]
