"""A page: a title and a list of sections, each a list of blocks. Any document, not only that of a run, is put together from these.

A block is a plain dict with its `kind`; the template has one branch per kind. Charts are blocks, too: their data travels as JSON in the
page, and charts.js draws them. The same page gives the same bytes: there is no clock and no random name in it.

The page can load nothing and run no script but its own: its Content-Security-Policy names the script's hash. So even a text that was
not escaped could not do anything.
"""

import base64
import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources
from typing import Any

import msgspec

from inferometer.analysis.metrics import METRICS
from inferometer.report import formatting
from inferometer.report.document import (
    MARK,
    Bars,
    Facts,
    Items,
    Judged,
    Listing,
    Note,
    Section,
    Table,
    Verdict,
    Words,
    plain,
)
from inferometer.report.document import Block as AnyBlock

Block = dict[str, Any]
"""What the template shows; those of a document become such (`shown`)."""
COLOURS = 8
"""Colours of lines in style.css."""
_DIGITS = 5


class Page(msgspec.Struct, frozen=True):
    title: str
    subtitle: str
    sections: Sequence[Section]
    footer: str
    version: str
    """That of inferometer, which made the data."""


def render(page: Page) -> bytes:
    """Render the page. Sections without blocks are left out."""
    import jinja2  # noqa: PLC0415 (other exports do without it)
    from markupsafe import Markup, escape  # noqa: PLC0415

    sections = [msgspec.structs.replace(each, blocks=shown(each.blocks)) for each in page.sections]
    page = msgspec.structs.replace(page, sections=[section for section in sections if section.blocks])
    charts: dict[str, Block] = {}
    for section in page.sections:
        _number_charts(section.blocks, charts)  # type: ignore[arg-type]
    script = _file("charts.js")
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["ticks"] = lambda text: Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(text))))
    text = environment.from_string(_file("page.html.j2")).render(
        page=page,
        style=Markup(_file("style.css")),
        script=Markup(script),
        script_hash=Markup("sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()),
        data=Markup(_json({"charts": charts})),
    )
    return text.encode("utf-8", "replace")


def named_charts(page: Page) -> dict[str, Block]:
    """The charts of a page by short names: of the section, and of the chosen tabs or the chart's title if it has several."""
    found: dict[str, Block] = {}
    for section in page.sections:
        own = list(_charts(shown(section.blocks), section.id))
        for prefix, each in own:
            is_alone = sum(other == prefix for other, _ in own) == 1
            name = prefix if is_alone else f"{prefix}-{_slug(each['title'])}"
            copies = sum(known == name or known.startswith(f"{name}~") for known in found)
            found[f"{name}~{copies + 1}" if copies else name] = each
    return found


def _charts(blocks: Iterable[Block], prefix: str) -> Iterator[tuple[str, Block]]:
    for block in blocks:
        if block["kind"] == "chart":
            yield prefix, block
        for pane in block.get("panes", ()):
            yield from _charts(pane["blocks"], f"{prefix}-{_slug(pane['name'])}")
        yield from _charts(block.get("blocks", ()), prefix)


def _slug(text: str) -> str:
    return re.sub("[^a-z0-9.]+", "-", text.lower()).strip("-.")


def _file(name: str) -> str:
    return resources.files("inferometer.report.html").joinpath(name).read_text("utf-8")


def _number_charts(blocks: Iterable[Block], charts: dict[str, Block]) -> None:
    """Give each chart the next number, and collect their data."""
    for block in blocks:
        if block["kind"] == "chart":
            block["id"] = f"c{len(charts) + 1}"
            charts[block["id"]] = {"title": block["title"], "id": block["id"], **block["data"]}
        for inner in (*block.get("panes", ()), block):
            _number_charts(inner.get("blocks", ()), charts)


def _json(value: object) -> str:
    """Compact JSON that cannot end the script element it stands in."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text


def rounded(values: Iterable[float | None]) -> list[float | int | None]:
    """Numbers for a chart: with five significant digits, whole ones as integers, unknown and infinite ones as null."""
    return [_round(value) for value in values]


def _round(value: float | None) -> float | int | None:
    if value is None or not math.isfinite(value):
        return None
    short = float(f"{value:.{_DIGITS}g}")
    return int(short) if short == int(short) else short


def sentence(text: str) -> str:
    """The text in one line as a sentence: with a capital, unless it begins with a name such as `ttft`, and a full stop."""
    text = formatting.one_line(text, 1000)
    first = re.split("[ :,.]", text, maxsplit=1)[0]
    start = text[:1].upper() if first.isalpha() and first not in METRICS else text[:1]
    return f"{start}{text[1:]}{'' if text.endswith(('.', '!', '?')) or not text else '.'}"


# --- the blocks of a document ----------------------------------------------------------------------------------------


def shown(blocks: Iterable[AnyBlock]) -> list[Block]:
    """The blocks of a document as those of a page; what is a block of a page already stays as it is."""
    found: list[Block] = []
    for block in blocks:
        match block:
            case Table():
                found += _table(block)
            case Note(text=text, sign=sign, tone=tone) if plain(text):
                is_alert = sign or tone in ("warn", "bad")
                found.append(_alert(sign or "!", tone, plain(text)) if is_alert else note(sentence(plain(text))))
            case Items():
                found.append(
                    items(
                        [
                            item(one.sign, one.tone, sentence(one.text), one.name.replace("_", " "))
                            for one in block.items
                        ]
                    )
                )
            case Facts():
                found.append(_facts(block))
            case Judged():
                rows = [
                    [one.name, tinted(f"{one.sign} {one.status}", one.tone), one.value, one.reason]
                    for one in block.rows
                ]
                found.append(table(["objective", "status", "measured", "why"], rows, texts=(1, 3)))
            case Listing():
                texts = [number for number, column in enumerate(block.columns) if not column.right]
                found.append(
                    table(
                        [column.name for column in block.columns],
                        [list(map(_words, row)) for row in block.rows],
                        texts=texts,
                    )
                )
            case Verdict():
                found.append(
                    {"kind": "verdict", "tone": block.tone, "words": block.words, "text": sentence(block.text)}
                )
            case dict():
                inner = {"blocks": shown(block["blocks"])} if "blocks" in block else {}
                panes = [{**pane, "blocks": shown(pane["blocks"])} for pane in block.get("panes", ())]
                found.append({**block, **inner, **({"panes": panes} if panes else {})})
            case Bars():
                pass  # a page has better charts
    return found


def _table(block: Table) -> list[Block]:
    texts = [number for number, column in enumerate(block.columns, 1) if column in block.texts]
    rows = [[label, *map(_cell, cells)] for label, *cells in block.rows]
    made = table([block.title, *block.columns], rows, texts=texts)
    return [made, *(note(sentence(text)) for text in block.footnotes(block.columns))]


def _cell(text: str) -> object:
    """A cell of numbers: one with a mark is pale, and an interval has a dash or, if it has no end, a word."""
    low, dots, high = text.partition(" .. ")
    if dots:
        text = f"over {low}" if high in ("-", "inf") else f"{low} – {high}"
    return tinted(text, "soft") if text.endswith(MARK) else text


def _words(words: Words) -> object:
    """A text in the colour of its first piece."""
    tone = "" if isinstance(words, str) else words[0][1].split()[-1] if words[0][1] else ""
    return tinted(plain(words), tone) if tone in ("good", "warn", "bad") else plain(words)


def _facts(block: Facts) -> Block:
    lines: list[tuple[str, str]] = []
    for label, parts in block.facts:
        text = " · ".join(map(plain, parts))
        if label or not lines:
            lines.append((label, text))
        else:
            lines[-1] = (lines[-1][0], f"{lines[-1][1]} · {text}")
    return facts(lines)


def _alert(sign: str, tone: str, text: str) -> Block:
    return items([item(sign, tone, sentence(text))])


# --- blocks ----------------------------------------------------------------------------------------------------------


def answer(words: str, text: str, tone: str = "") -> Block:
    """The answer in large letters, with a sentence below it; `tone` is its colour (good, warn, bad)."""
    return {"kind": "answer", "words": words, "text": text, "tone": tone}


def chart(title: str, reading: str, data: Mapping[str, Any], tight: bool = False) -> Block:
    """A chart, with a sentence that says what to read from it; `tight`: one of several below each other."""
    return {"kind": "chart", "title": title, "reading": reading, "data": dict(data), "tight": tight}


def ramp(series: Sequence[dict[str, Any]]) -> None:
    """Colour more lines than there are colours by their order, so that neighbours look alike."""
    if len(series) > COLOURS:
        for index, each in enumerate(series):
            each["ramp"] = round(index / (len(series) - 1), 3)


def table(
    columns: Sequence[str], rows: Sequence[Sequence[object]], caption: str = "", texts: Sequence[int] = ()
) -> Block:
    """A table of strings, or of `tinted` cells; `texts` are the columns with prose, which are aligned to the left."""
    rows = [["–" if cell == "-" else cell for cell in row] for row in rows]
    return {"kind": "table", "columns": columns, "rows": rows, "caption": caption, "texts": tuple(texts)}


def tinted(text: str, tone: str, small: str = "") -> Block:
    """A cell of a table in a colour (good, warn, bad), with an addition in small print."""
    return {"text": text, "tone": tone, "small": small}


def shaded(text: str, share: float, small: str = "") -> Block:
    """A cell of a table of which the background is the stronger, the larger the share (0 to 1)."""
    return {"text": text, "tone": "", "small": small, "shade": round(70 * min(max(share, 0.0), 1.0))}


def bar(share: float, tone: str = "") -> Block:
    """A cell with a bar, up to 160 pixels long."""
    return {"bar": round(160 * min(max(share, 0.0), 1.0)), "tone": tone}


def facts(pairs: Iterable[tuple[str, str]]) -> Block:
    """Names and values, without those that have no value."""
    return {"kind": "facts", "facts": [(name, value) for name, value in pairs if value]}


def cards(each: Sequence[Mapping[str, str]]) -> Block:
    return {"kind": "cards", "cards": each}


def card(name: str, value: str, unit: str = "", under: str = "", tone: str = "") -> dict[str, str]:
    """A headline figure with its name above and a remark below."""
    return {"name": name, "value": value, "unit": unit, "under": under, "tone": tone}


def item(sign: str, tone: str, text: str, name: str = "") -> dict[str, str]:
    return {"sign": sign, "tone": tone, "text": text, "name": name}


def items(each: Sequence[Mapping[str, str]]) -> Block:
    """A list in which every line has a sign, and a name if any line has one."""
    return {"kind": "items", "items": each, "named": any(one["name"] for one in each)}


def note(text: str) -> Block:
    return {"kind": "note", "text": text}


def heading(text: str) -> Block:
    return {"kind": "heading", "text": text}


def code(text: str) -> Block:
    return {"kind": "code", "text": text}


def details(summary: str, blocks: Sequence[AnyBlock]) -> Block:
    """Blocks that are folded away until the reader opens them."""
    return {"kind": "details", "summary": summary, "blocks": blocks}


def tabs(switches: Sequence[Sequence[tuple[str, str]]], panes: Mapping[str, Sequence[AnyBlock]]) -> Block:
    """Blocks of which one pane is shown at a time. Each switch has values and labels; the key of a pane is its values, joined by `|`.

    The first pane is that of each switch's first value. A switch with a single value is not needed, and not shown.
    """
    kept = [index for index, switch in enumerate(switches) if len(switch) > 1]
    shown = [
        {"name": key, "key": "|".join(key.split("|")[index] for index in kept), "blocks": blocks}
        for key, blocks in panes.items()
    ]
    return {"kind": "tabs", "switches": [switches[index] for index in kept], "panes": shown}


def stack(parts: Sequence[tuple[str, float, str, int]]) -> Block:
    """A bar divided by (name, value, text, colour)."""
    total = math.fsum(value for _, value, _, _ in parts) or 1.0
    return {
        "kind": "stack",
        "parts": [
            {"name": name, "percent": f"{100 * value / total:.2f}", "text": text, "colour": colour}
            for name, value, text, colour in parts
        ],
    }
