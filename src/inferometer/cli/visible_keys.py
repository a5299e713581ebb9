"""A warning about keys on the command line: anybody on the machine can read them in the list of processes."""

import re
from collections.abc import Sequence

_URL_PASSWORD = re.compile(r"://[^/@\s:]*:[^/@\s]+@")
_HOLDERS = {"headers", "body", "parameters"}
"""Settings that take names of the user's choice, some of which are secret."""
_ELSEWHERE = ("_env", "_file", "_path")
"""Ends of names of settings that say where a key is."""
_INSTEAD = "use --api-key-env (server.api_key_env), --api-key-file or a config file"


def warning(arguments: Sequence[str]) -> str | None:
    """The warning, or None if no argument looks like a key. It names the option, never the value."""
    for option, value in zip(["", *arguments], arguments, strict=False):
        if (name := _visible_key(option, value)) is not None:
            return (
                f"inferometer: warning: the key in {name} is visible in the list of processes and in the shell's history: "
                + ("use the config file" if name.startswith("--") and "." in name.split()[0] else _INSTEAD)
            )
    return None


def _visible_key(option: str, value: str) -> str | None:
    """Describe the argument `value`, which follows `option`, if it holds a key."""
    if _URL_PASSWORD.search(value):
        return "a URL"
    if value.startswith("--") and "=" in value:  # --set=KEY=VALUE, --server.api_key=VALUE
        return _visible_key(*value.split("=", 1))
    if option in ("--header", "-H"):  # -H is perf_analyzer's; vllm bench serve has NAME=VALUE
        name = re.split(r"[:=\s]", value, maxsplit=1)[0]
        return f"{option} {name}" if _is_secret(name) else None
    if option == "--set":
        return f"--set {value.partition('=')[0]}" if _is_secret_setting(value) else None
    if not (option.startswith("--") and "." in option):
        return None
    last = option.rpartition(".")[2]  # --server.api_key VALUE, --api.headers JSON of `inferometer inference-perf`
    is_key = _is_secret(last) and not last.endswith(_ELSEWHERE)
    return option if is_key or _is_secret_setting(f"{option}={value}") else None


def _is_secret_setting(setting: str) -> bool:
    key, _, text = setting.partition("=")
    *path, last = key.strip().split(".")
    if last in _HOLDERS:
        return any(map(_is_secret, re.findall(r"[\w-]+(?=['\"]?\s*:)", text)))
    return bool(_HOLDERS & set(path)) and _is_secret(last)


def _is_secret(name: str) -> bool:
    from inferometer.config.secret import is_secret  # noqa: PLC0415 - most commands have no such option

    return is_secret(name)
