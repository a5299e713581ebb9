"""Any server: a shell command and a URL, or only the URL of one that runs already."""

from inferometer.engines.launching import EngineError, Launch, ServerEngine, Start


def _launch(start: Start) -> Launch:
    spec = start.spec
    if not spec.command and not spec.url:
        raise EngineError(f"{spec.name}: type command needs `command`, `url` or both", "add them to its entry")
    url = spec.url or f"http://127.0.0.1:{start.port}"
    command = (spec.command or "").replace("{port}", str(start.port)).replace("{model}", start.model)
    return Launch(command=command, url=url, ready=spec.ready or "")


ENGINE = ServerEngine(_launch, "install what `command` names")
