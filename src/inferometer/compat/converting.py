"""From a config file or a command line of another tool to our YAML."""

import copy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml

from inferometer.analysis import slo_expression
from inferometer.compat import command_line, perf_analyzer, simple_perf_client, vllm_bench
from inferometer.compat.command_line import CommandLine, Given
from inferometer.config import from_mapping, yaml_text
from inferometer.errors import UserError, named
from inferometer.wire import target


class Converted(msgspec.Struct, frozen=True):
    """What another tool would measure, as our config."""

    tool: str
    config: dict[str, Any]
    notes: Sequence[str] = ()
    """What differs, one sentence each."""
    warnings: Sequence[str] = ()
    """Secrets that were left out, one sentence each."""


_KNOWN = "a `vllm bench serve`, perf_analyzer or simple_perf_client.py command line, or a config file of inference-perf"


def convert(words: Sequence[str]) -> Converted:
    """Convert the words of a command line, a file that contains one, a config file, or a command line in a single word.

    Raises UserError that names the option or key when its meaning cannot be kept.
    """
    if len(words) == 1 and not _is_text(words[0]):
        return _from_file(words[0])
    if len(words) == 1:
        return _from_script(words[0], "the command line")
    return from_command(CommandLine(list(words), {}))


def _is_text(word: str) -> bool:
    """Whether the word is a whole command line, rather than a path."""
    return any(char in word for char in " \n") and not Path(word).exists()


def _from_file(path: str) -> Converted:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{path}: not a text file", f"give {_KNOWN}") from None
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}", f"give {_KNOWN}") from None
    if any(_found(one) for one in _commands_of(text)):
        return _from_script(text, path)
    try:
        tree = yaml_text.parse(text)
    except (ValueError, RecursionError):
        tree = None
    if not isinstance(tree, dict):
        raise UserError(f"{path}: this is neither a known command line nor YAML", f"give {_KNOWN}")
    if isinstance(tree.get("server"), dict) and "url" in tree["server"]:
        raise UserError(f"{path}: this is a config of inferometer already", f"measure it: inferometer run {path}")
    return _from_inference_perf(path)


def _commands_of(text: str) -> list[CommandLine]:
    """The commands in a text; none if it is not a script, as a YAML file with an apostrophe."""
    try:
        return command_line.split(text)
    except UserError:
        return []


def _from_script(text: str, source: str) -> Converted:
    known = [one for one in command_line.split(text) if _found(one)]
    if len(known) > 1:
        raise UserError(f"{source}: there are {len(known)} command lines to convert", "give one at a time")
    if not known:
        raise UserError(f"{source}: this is not a known command", f"give {_KNOWN}")
    return from_command(known[0])


def _from_inference_perf(path: str) -> Converted:
    from inferometer.compat.inference_perf import reading, translate_server, translating  # noqa: PLC0415 - often not needed

    has_seed = "base_seed" in Path(path).read_text(encoding="utf-8")
    options = (
        {} if has_seed else {"load.base_seed": "0"}
    )  # its default is the time, and a file should not change with that
    spec, notes = reading.read(Path(path), options, lenient=False)
    secrets = Given("inference-perf", {}, {})
    with named(source=path):
        translation = translating.translate(spec)
        hidden = command_line.headers(secrets, "api.headers", translate_server.secret_headers(spec).items())
    config = translation.config | {"server": translation.config["server"] | hidden}
    return _checked(Converted("inference-perf", config, (*notes, *translation.notes), secrets.warnings), {}, path)


# --- command lines ---------------------------------------------------------------------------------------------------


def _vllm(words: list[str], variables: Mapping[str, str]) -> Converted:
    return _of(vllm_bench.NAMES, *vllm_bench.translate(words, variables))


def _perf_analyzer(words: list[str], variables: Mapping[str, str]) -> Converted:
    return _of(perf_analyzer.NAMES, *perf_analyzer.translate(words))


def _simple_perf_client(words: list[str], variables: Mapping[str, str]) -> Converted:
    return _of(simple_perf_client.NAMES, *simple_perf_client.translate(words))


def _of(names: Mapping[str, str], config: dict[str, Any], given: Given) -> Converted:
    return _checked(Converted(given.tool, config, given.notes, given.warnings), names, given.tool)


_TOOLS: tuple[tuple[tuple[str, ...], Callable[[list[str], Mapping[str, str]], Converted]], ...] = (
    (("vllm", "bench", "serve"), _vllm),
    (("vllm.entrypoints.cli.main", "bench", "serve"), _vllm),
    (("benchmark_serving.py",), _vllm),
    (("perf_analyzer",), _perf_analyzer),
    (("perf_client",), _perf_analyzer),
    (("simple_perf_client.py",), _simple_perf_client),
)
"""The words that a command of each tool has, and the function that translates those after them."""


def from_command(command: CommandLine) -> Converted:
    """Convert a command line. What is in front of the tool's name, such as `python -m` or `docker exec NAME`, does not count."""
    found = _found(command)
    if found is None:
        raise UserError(f"{command.words[0]}: this is not a known command", f"give {_KNOWN}")
    words, translate = found
    return translate(words, command.variables)


def _found(command: CommandLine) -> tuple[list[str], Callable[[list[str], Mapping[str, str]], Converted]] | None:
    """The words after the tool's name, and the function that translates them."""
    for start, word in enumerate(command.words):
        for names, translate in _TOOLS:
            if (word.rpartition("/")[2], *command.words[start + 1 : start + len(names)]) == names:
                return command.words[start + len(names) :], translate
    return None


def _checked(converted: Converted, names: Mapping[str, str], source: str) -> Converted:
    """Check that the config is valid. Errors name the options of the tool."""
    with named(names, source):
        config = from_mapping(copy.deepcopy(converted.config), source=source)
        slo_expression.parse_all(config.slos)
        for url in config.server.urls:
            target.parse(url)
    return converted


# --- YAML ------------------------------------------------------------------------------------------------------------


class _Dumper(yaml.SafeDumper):
    """Writes every part in full, although parts may be the same object."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def to_yaml(converted: Converted) -> str:
    """Our config file, with the notes as comments."""
    lines = [f"Converted from {converted.tool}.", *converted.notes, *converted.warnings]
    comments = "".join(f"# {line}\n" for line in lines)
    body = yaml.dump(converted.config, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
    return f"{comments}\n{body}"
