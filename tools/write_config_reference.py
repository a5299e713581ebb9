"""`make docs`: docs/config.md anew from the schema."""

from pathlib import Path

from inferometer.config.reference import markdown

Path(__file__).parents[1].joinpath("docs", "config.md").write_text(markdown(), encoding="utf-8")
