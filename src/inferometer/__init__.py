"""Inferometer: the instrument that says how fast a model server really is."""

__version__ = "0.1.0"
