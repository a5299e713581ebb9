"""Dummy inputs for a model, from Python: `inferometer.dummy_inputs(...)`.

inputs.py       the public function, and what it returns
signatures.py   where the names, datatypes and shapes of a model's inputs come from
"""

from inferometer.dummies.inputs import dummy_inputs

__all__ = ["dummy_inputs"]
