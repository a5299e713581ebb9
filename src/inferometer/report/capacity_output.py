"""Where the capacity of a server goes: to the terminal, to capacity.json in the folder of its probes, and to files on request.

`capacity` ends here, and `report` shows the same again from capacity.json.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import click

from inferometer.capacity_search.result import Capacity, from_json
from inferometer.errors import UserError
from inferometer.records import Manifest
from inferometer.report import capacity_export, capacity_report
from inferometer.report.output import wants_color, write_file

FILE = "capacity.json"
FORMATS = ("json", "html", "markdown", "junit")


def check_formats(paths: Mapping[str, str]) -> None:
    """Raise UserError for files that a search does not have; they come from the config, because `capacity` has no options for them."""
    for name in paths:
        if name not in FORMATS:
            raise UserError(
                "this file is about a single run, and a search has several",
                f"leave it out; a search has {', '.join(FORMATS)}",
                f"report.{name.replace('-', '_')}",
            )


def save(found: Capacity, manifest: Manifest | None) -> None:
    """Write capacity.json, from which every report can be made again."""
    encoded = capacity_export.encode(found, manifest)
    write_file(f"{found.folder}/{FILE}", lambda file: file.write(encoded))


def deliver_capacity(found: Capacity, manifest: Manifest | None, paths: Mapping[str, str]) -> int:
    """Print the answer, write the files, and return the exit status: 0 if the level that must hold, or any, holds."""
    if "-" not in paths.values():
        click.echo(capacity_report.render(found, color=wants_color()), nl=False, color=True)
    for name, path in paths.items():
        encoded = _encode(name, found, manifest)
        write_file(path, lambda file, encoded=encoded: file.write(encoded))  # type: ignore[misc]
    return 0 if found.outcome == "met" else 1


def _encode(name: str, found: Capacity, manifest: Manifest | None) -> bytes:
    if name == "html":
        from inferometer.report.html import capacity_page  # noqa: PLC0415 (other formats do without it)

        return capacity_page.encode(found, manifest)
    if name == "markdown":
        return capacity_export.summary(found).encode()
    return capacity_export.suite(found) if name == "junit" else capacity_export.encode(found, manifest)


def is_capacity(folder: Path) -> bool:
    """Whether the folder holds a search for the capacity, not a run."""
    return (folder / FILE).is_file()


def read(folder: str) -> tuple[Capacity, Manifest | None]:
    """Read capacity.json. Raises UserError when it cannot be read."""
    path = Path(folder) / FILE
    try:
        found, manifest = from_json(json.loads(path.read_bytes()))
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}", "give a folder that can be read") from None
    except (ValueError, KeyError, TypeError) as error:  # msgspec.ValidationError is a ValueError
        raise UserError(f"{path}: this is not the result of a search: {error}", "run `inferometer capacity`") from None
    return found, manifest
