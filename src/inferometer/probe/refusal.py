"""Whether a probe's failure is one that every request of the run would share: a wrong key, model or URL."""

from inferometer.apis import APIS
from inferometer.config.schema import Server
from inferometer.errors import KEY_WANTED, UserError, key_remedy
from inferometer.probe import openai, reach
from inferometer.types import Fail
from inferometer.wire.failures import is_page, meaning


class EveryRequestFailsError(UserError):
    """A run would consist of failures."""


def check(fail: Fail, server: Server, reached: reach.Reached, model: str) -> None:
    """Raise EveryRequestFailsError if it is. `model`: the one that the request named."""
    if advice := remedy(fail.code, fail.message, server, reached, model):
        what = f"{reached.targets[0].url}: {meaning(fail.code)}{fail.message and ': '}{fail.message}"
        raise EveryRequestFailsError(what, f"{advice}; to send the load all the same, use {{client.probe=false}}")


def unlisted(server: Server, names: list[str], reached: reach.Reached | None = None) -> tuple[list[str], list[str]]:
    """Return those of the models that the server does not list, and those that it lists; nothing if it has no list."""
    try:
        peers, headers = reach.peers_of(server, reached or reach.reach(server))
        listed = [model.name for model in openai.listed(peers[0], headers)]
    except UserError:
        return [], []
    return [name for name in names if listed and name not in listed], listed


def remedy(code: str, message: str, server: Server, reached: reach.Reached, model: str) -> str:
    """What to do about the failure; empty if other requests may succeed."""
    if code in KEY_WANTED:
        return key_remedy(reach.peers_of(server, reached)[1])
    if code.startswith("http_3"):
        return "redirects are not followed: give the URL that this one leads to as {server.url}"
    if code.startswith("http_4") and APIS[server.api].discovery == "openai":
        missing, listed = unlisted(server, [model], reached)
        if missing:
            return f"the server lists {', '.join(listed[:9])}: name one of its models with {{server.model}}"
    if is_page(code, message):
        return "this is a web page, not a model server: check {server.url} and its path"
    if code in ("http_404", "http_405"):
        return f"check {{server.url}} and its path, and {{server.model}}, or use another API than {{server.api={server.api}}}"
    return ""
