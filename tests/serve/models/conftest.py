"""Tests of this folder may use the fake backends."""

from models_fakes import fakes

__all__ = ["fakes"]
