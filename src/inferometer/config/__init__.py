"""The config file.

schema.py     the sections and keys, with their types, defaults and descriptions
load.py       from YAML and overrides to a Config
convert.py    durations, windows and other conversions
explain.py    what is wrong with a file that does not fit the schema
check.py      what the types cannot express: parts that do not go together
ranges.py     `1:8:2` becomes one stage per level
grid.py       lists of values become a grid of configs
fleet.py      the section `fleet`: where the client's processes run
report.py     the section `report`: files to write after a run, and percentiles to show
reference.py  docs/reference/config.md, generated from the schema
secret.py     what must not be stored or shown
"""

from inferometer.config.load import from_mapping, read_tree
from inferometer.config.schema import Config

__all__ = ["Config", "from_mapping", "read_tree"]
