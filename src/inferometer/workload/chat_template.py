"""The model's chat template: what the server makes of messages, and how many tokens that adds.

Templates are Jinja2, as `transformers` renders them: in a sandbox, with the same functions. They are in the tokenizer's folder: in
chat_template.jinja, or in tokenizer_config.json.
"""

import json
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from inferometer.errors import UserError
from inferometer.types import Messages
from inferometer.workload.tokenizer import Tokenizer

KEY = "data.chat_template"
FILES = ("chat_template.jinja", "tokenizer_config.json")
"""Where a tokenizer's folder has its template."""
_REMEDY = (
    "use a tokenizer folder with a chat_template.jinja, or a tokenizer_config.json that has a chat_template; or ignore"
)
_SAMPLE = 64
"""If the template adds the same number of tokens to this many prompts, it is taken to add it to all."""


class ChatTemplate:
    """Makes the prompt from messages."""

    def __init__(self, render: Callable[[Messages], str]) -> None:
        self.render = render

    def around(self, text: str) -> str:
        """The prompt for one message of the user."""
        return self.render([{"role": "user", "content": text}])


def is_available(tokenizer: Tokenizer) -> bool:
    return _source(tokenizer.folder) is not None


@cache
def load(tokenizer: Tokenizer) -> ChatTemplate:
    """Return the template of the tokenizer's folder. Raises UserError when there is none."""
    source = _source(tokenizer.folder)
    if source is None:
        raise UserError(f"tokenizer {tokenizer.name} has no chat template", _REMEDY, key=KEY)
    return ChatTemplate(_compile(tokenizer.name, *source))


def whole_counts(tokenizer: Tokenizer, payloads: Sequence[str | Messages], contents: Sequence[int]) -> list[int]:
    """The tokens of the whole prompt of each payload, whose content alone has the number of tokens in `contents`."""
    template = load(tokenizer)
    if tokenizer.adds_up and all(isinstance(payload, str) for payload in payloads):
        texts = [payload for payload in payloads[:_SAMPLE] if isinstance(payload, str)]
        counts = tokenizer.count_batch(map(template.around, texts))
        added = {count - content for count, content in zip(counts, contents, strict=False)}
        if len(added) == 1:
            overhead = added.pop()
            return [content + overhead for content in contents]
    return tokenizer.count_batch(
        template.around(payload) if isinstance(payload, str) else template.render(payload) for payload in payloads
    )


# --- the file --------------------------------------------------------------------------------------------------------


def _source(folder: Path | None) -> tuple[str, dict[str, str]] | None:
    """The template's text, and the special tokens that it refers to."""
    if folder is None:
        return None
    file, config = folder / FILES[0], _read_json(folder / FILES[1])
    if file.is_file():
        template: object = file.read_text(encoding="utf-8")
    else:
        template = config.get("chat_template")
    if isinstance(template, list):  # several by name
        named = {str(each.get("name")): each.get("template") for each in template if isinstance(each, dict)}
        template = named.get("default")
    if not isinstance(template, str):
        return None
    tokens = {name: _text(value) for name, value in config.items() if name.endswith("_token") and value is not None}
    return template, tokens


def _text(token: object) -> str:
    return str(token.get("content", "")) if isinstance(token, dict) else str(token)


def _read_json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        content = json.loads(file.read_bytes())
    except ValueError as error:
        raise UserError(f"{file} is not JSON: {error}", "fix the file, or leave it out", key=KEY) from None
    return content if isinstance(content, dict) else {}


# --- rendering -------------------------------------------------------------------------------------------------------


def _compile(name: str, source: str, tokens: dict[str, str]) -> Callable[[Messages], str]:
    import jinja2  # noqa: PLC0415  (slow to import)
    from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: PLC0415

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = raise_exception
    # The date is today's, because the server puts the same one into its prompts.
    environment.globals["strftime_now"] = lambda format: datetime.now().strftime(format)
    try:
        template = environment.from_string(source)
    except jinja2.TemplateError as error:
        raise UserError(f"the chat template of {name} is not valid: {error}", _REMEDY, key=KEY) from None

    def render(messages: Messages) -> str:
        try:
            return template.render(messages=messages, add_generation_prompt=True, **tokens)
        except Exception as error:  # templates raise anything
            raise UserError(f"the chat template of {name} rejects the messages: {error}", _REMEDY, key=KEY) from None

    return render


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **_: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)
