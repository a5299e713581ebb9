"""Command lines of other tools: from text to words, and from words to the values of options.

A tool's options are one table of `Option`s. Each row says whether the option is translated, has no effect here, or is refused.
"""

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from inferometer.errors import UserError

VARIABLE = "\ue000"
"""Stands for the `$` of a shell variable in a word, as opposed to a dollar sign that is meant literally."""


class Option(msgspec.Struct, frozen=True):
    """An option of another tool. If it is neither refused nor without effect, the tool's `translate` uses its value."""

    names: str
    """All names, with spaces between them; the first is the one by which its value is found."""
    kind: type[int] | type[float] | type[str] = str
    default: Any = None
    takes: Literal["flag", "value", "values"] = "value"
    """Whether it has no value, one, or all words up to the next option."""
    repeats: bool = False
    """Whether it may be given several times, so that its value is a list."""
    choices: tuple[str, ...] = ()
    becomes: str = ""
    """The keys of our config that it decides about."""
    no_effect: str = ""
    """Why it changes nothing here."""
    refused: str = ""
    """Why it cannot be translated."""
    instead: str = ""
    """What to do about an option that is refused."""

    @property
    def name(self) -> str:
        return self.names.split()[0]


class Given(msgspec.Struct):
    """The options of a command line."""

    tool: str
    options: Mapping[str, Option]
    """The table, by every name."""
    values: dict[str, Any]
    """What was given, by the options' first names."""
    notes: list[str] = msgspec.field(default_factory=list)
    """What a reader of the translation should know, one sentence each."""
    warnings: list[str] = msgspec.field(default_factory=list)
    """The same about secrets, which the translation does not contain."""
    with_secrets: bool = False
    """Whether the translation contains secrets: it is measured at once, and not written to a file."""

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def __getitem__(self, name: str) -> Any:
        """The value that was given, or the tool's default."""
        return self.values.get(name, self.options[name].default)

    def refuse(self, name: str, why: str, instead: str = "") -> UserError:
        """The error about an option, as it was given, whose meaning cannot be kept."""
        value = self.values.get(name)
        shown = f" {value}" if isinstance(value, str | int | float) and not isinstance(value, bool) else ""
        return UserError(f"{self.tool}: {name}{shown}: {why}", instead or "leave it out")


class CommandLine(msgspec.Struct, frozen=True):
    """One command with its arguments, and the variables that were set for it."""

    words: list[str]
    variables: dict[str, str]


# --- from text to words ----------------------------------------------------------------------------------------------


def split(text: str) -> list[CommandLine]:
    """Split a script into its commands, as a shell would. Raises UserError when a quote is not closed."""
    commands: list[CommandLine] = []
    exported: dict[str, str] = {}
    for raw in _commands(text):
        words = [_expanded(word, exported) for word in raw]
        assigned: dict[str, str] = {}
        rest = words[1:] if words[0] == "export" else words
        while rest and (name := rest[0].partition("=")[0]) != rest[0] and name.isidentifier():
            assigned[name] = rest.pop(0).partition("=")[2]
        if rest and words[0] != "export":
            commands.append(CommandLine(rest, exported | assigned))
        else:
            exported |= assigned
    return commands


def _expanded(word: str, variables: Mapping[str, str]) -> str:
    """The word with the values of variables that the script has set, except for secrets."""
    if VARIABLE not in word:
        return word
    from inferometer.config.secret import is_secret  # noqa: PLC0415 - the whole config

    def value(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        return found[0] if name not in variables or is_secret(name) else variables[name]

    return re.sub(rf"{VARIABLE}(?:(\w+)|\{{(\w+)\}})", value, word)


_TOKEN = re.compile(
    r"""'(?P<single>[^']*)'|"(?P<double>(?:\\.|[^"\\])*)"|(?P<joined>\\\r?\n)|\\(?P<escaped>.)
      |(?P<separator>[\n;&|])|(?P<space>[ \t\r]+)|(?P<comment>\#[^\n]*)|(?P<unclosed>['"])|(?P<plain>[^\s'"\\;&|]+)""",
    re.DOTALL | re.VERBOSE,
)
"""What a shell's command line consists of."""


def _commands(text: str) -> list[list[str]]:
    commands: list[list[str]] = [[]]
    word: str | None = None
    for token in _TOKEN.finditer(text):
        kind = token.lastgroup or ""
        if kind == "unclosed":
            raise UserError(f"the command line has a {token[0]} that is not closed", "check its quotes")
        if kind in ("separator", "space") or (kind == "comment" and word is None):
            if word is not None:
                commands[-1].append(word)
            word = None
            if kind == "separator":
                commands.append([])
        elif kind != "joined":
            word = (word or "") + _meaning(kind, token[kind])
    if word is not None:
        commands[-1].append(word)
    return [command for command in commands if command]


def _meaning(kind: str, text: str) -> str:
    """The characters that a part of a word stands for."""
    if kind == "double":
        return re.sub(r'\\([$`"\\])|\\\n|\$', lambda found: found[1] or VARIABLE * (found[0] == "$"), text)
    return text.replace("$", VARIABLE) if kind == "plain" else text


# --- from words to values --------------------------------------------------------------------------------------------


def parse(tool: str, table: Iterable[Option], words: Sequence[str], with_secrets: bool = False) -> Given:
    """Read the words after the command by the tool's table. Raises UserError that names the option at fault."""
    options = {name: option for option in table for name in option.names.split()}
    given = Given(tool, options, {}, with_secrets=with_secrets)
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-") or word == "-":
            raise UserError(f"{tool}: {word!r} is not an option", "check the command line for quotes that are missing")
        name, equals, attached = word.partition("=")
        if word[1] != "-" and word not in options and word[:2] in options and options[word[:2]].takes == "value":
            name, equals, attached = word[:2], "=", word[2:]  # -b8
        option = _find(tool, name, options)
        if option.refused:
            raise UserError(f"{tool}: {option.name}: {option.refused}", option.instead or "leave it out")
        values = [attached] if equals else []
        if option.takes == "value" and not equals:
            if not rest:
                raise UserError(f"{tool}: {option.name} needs a value", "add it, or leave the option out")
            values = [rest.pop(0)]
        while option.takes == "values" and rest and not rest[0].startswith("-"):
            values.append(rest.pop(0))
        _store(given, option, values)
    return given


def _find(tool: str, name: str, options: Mapping[str, Option]) -> Option:
    """The option of this name: underscores are hyphens, and the start of a long name is enough if no other starts with it."""
    plain = name.replace("_", "-")
    if plain in options:
        return options[plain]
    starting = {option.name: option for known, option in options.items() if known.startswith(plain)}
    if plain.startswith("--") and len(plain) > 2 and len(starting) == 1:
        return next(iter(starting.values()))
    near = difflib.get_close_matches(plain, options, 1, 0.5)
    candidates = sorted(starting) or near
    hint = f"did you mean {' or '.join(candidates)}?" if candidates else "leave it out"
    raise UserError(f"{tool}: there is no option {name}", hint)


def _store(given: Given, option: Option, words: list[str]) -> None:
    if option.no_effect:
        given.notes.append(f"{option.name} has no effect here: {option.no_effect}.")
    values = [_value(given.tool, option, word) for word in words]
    if option.takes == "flag":
        given.values[option.name] = True
    elif option.takes == "values":
        given.values[option.name] = values
    elif option.repeats:
        given.values.setdefault(option.name, []).extend(values)
    else:
        given.values[option.name] = values[0]


def _value(tool: str, option: Option, word: str) -> Any:
    if VARIABLE in word and option.name not in ("--header", "-H"):
        shown = word.replace(VARIABLE, "$")
        raise UserError(f"{tool}: {option.name} {shown}: the value of the variable is not known here", "write it out")
    if option.kind is not str:
        try:
            return option.kind(word)
        except ValueError:
            kind = "a whole number" if option.kind is int else "a number"
            raise UserError(f"{tool}: {option.name} must be {kind} (got {word!r})", "correct it") from None
    if option.choices and word not in option.choices:
        raise UserError(
            f"{tool}: {option.name} must be one of {', '.join(option.choices)} (got {word!r})", "correct it"
        )
    return word


# --- secrets ---------------------------------------------------------------------------------------------------------


def header_pairs(given: Given, option: str, separator: str) -> list[tuple[str, str]]:
    """The names and values of headers. Raises UserError, without the value, when one has no separator."""
    pairs = []
    for text in given[option] or []:
        name, found, value = text.partition(separator)
        if not found or not name.strip():
            raise given.refuse(option, f"a header is NAME{separator}VALUE", "correct it")
        pairs.append((name.strip(), value.strip()))
    return pairs


def headers(given: Given, option: str, pairs: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Our settings for headers: `headers`, and `api_key_env` instead of a bearer token. Other secrets are left out, with a warning."""
    from inferometer.config.secret import is_secret  # noqa: PLC0415 - the whole config

    if given.with_secrets:
        return {"headers": dict(pairs)}
    settings: dict[str, Any] = {}
    for name, value in pairs:
        scheme, _, token = value.partition(" ")
        if name.lower() == "authorization" and scheme.lower() == "bearer":
            variable = token.removeprefix(VARIABLE).strip("{}") if token.startswith(VARIABLE) else "OPENAI_API_KEY"
            settings["api_key_env"] = variable
            given.warnings.append(
                f"{option}: the API key is not written: it is read from the environment variable {variable}."
            )
        elif is_secret(name) or VARIABLE in value:
            given.warnings.append(
                f"{option}: the value of {name} is not written; add it when you run: --set server.headers.{name}=..."
            )
        else:
            settings.setdefault("headers", {})[name] = value
    return settings


def url_without_password(given: Given, option: str, url: str) -> str:
    """The URL without a user, a password and a query, with a warning if it has one of them."""
    from inferometer.config.secret import without_password  # noqa: PLC0415 - the whole config

    if given.with_secrets or not {"@", "?"} & set(url):
        return url
    given.warnings.append(
        f"{option}: the password or token in the URL is not written; add it with --set server.url=..."
    )
    return without_password(url)
