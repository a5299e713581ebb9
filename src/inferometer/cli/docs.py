"""`inferometer docs`: the pages of the documentation, which are installed with the package."""

import difflib
from pathlib import Path

import click

from inferometer.errors import UserError

_PAGES = Path(__file__).parent.parent / "docs"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("topic", required=False)
def command(topic: str | None) -> None:
    """Print the page TOPIC of the documentation, such as config or capacity (Markdown); without TOPIC, list the pages."""
    pages = {page.stem: page.read_text(encoding="utf-8") for page in sorted(_PAGES.rglob("[a-z]*.md"))}
    if topic is None:
        for name, text in pages.items():
            click.echo(f"{name:<22} {text.partition(chr(10))[0].lstrip('# ')}")
    elif topic in pages:
        click.echo_via_pager(pages[topic])
    else:
        near = difflib.get_close_matches(topic, pages, 1, 0.5)
        remedy = f"did you mean {near[0]}?" if near else "`inferometer docs` lists the pages"
        raise UserError(f"there is no page {topic!r}", remedy)
