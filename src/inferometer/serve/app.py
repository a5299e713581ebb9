"""Assembles the server (sockets, models, protocols), serves until it is stopped, and drains.

The HTTP ports are bound first, so that a port in use is reported before any model is loaded. Draining has an order:
health checks report NOT_SERVING and readiness fails, new requests are refused, requests in progress are finished (for
at most `settings.drain` seconds), and only then are connections closed. A second signal stops the server at once; so
does the first one while models are still loading.
"""

import asyncio
import contextlib
import gc
import itertools
import resource
import signal
import socket
from collections.abc import Callable

import msgspec

from inferometer.serve import ports
from inferometer.serve.kserve.grpc import KserveGrpc
from inferometer.serve.kserve.grpc import start as start_grpc
from inferometer.serve.memory import keep_one_heap
from inferometer.serve.models.registry import Models
from inferometer.serve.models.repository import ModelSource
from inferometer.serve.offload import done_before
from inferometer.serve.processes.hub import Group, Hub
from inferometer.serve.settings import Settings, check
from inferometer.serve.sim.server import KSERVE_CONFIG, Simulator
from inferometer.serve.sockets import tls
from inferometer.serve.sockets.listener import Listener
from inferometer.serve.web import Web
from inferometer.timing.clock import now

_SIGNALS = signal.SIGINT, signal.SIGTERM
_ANNOUNCED_S = 0.1
"""Time between reporting not ready and refusing the first request, so that load balancers notice first."""
_GOODBYE_NS = 100_000_000
_LOOK_S = 0.01
_YOUNG, _YOUNG_FOR_TIMING = 5_000, 100_000
"""New objects between two garbage collections. Collecting more at once takes milliseconds, which would delay simulated
tokens; but garbage from requests should not pile up."""


class Listening(msgspec.Struct, frozen=True):
    """The addresses of a running server; "" for what is not served."""

    http: str
    grpc: str = ""
    metrics: str = ""
    models: tuple[str, ...] = ()
    """Models that are ready."""
    failed: tuple[tuple[str, str], ...] = ()
    """Models that failed to load, with the reasons."""


Ready = Callable[[Listening], None]


async def serve(
    settings: Settings, ready: Ready, stop: asyncio.Event | None = None, group: Group | None = None
) -> None:
    """Serve until SIGINT, SIGTERM or `stop`; `ready` is called with the addresses once the server listens. If a `group`
    is given, this process is one of its front ends."""
    check(settings)
    stop, at_once = stop or asyncio.Event(), asyncio.Event()
    means = itertools.chain([stop], itertools.repeat(at_once))  # the first signal, and the next ones
    for number in _SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, lambda: next(means).set())
    async with Hub() as hub:
        if settings.processes > 1 and group is None:
            await hub.supervise(settings, lambda at: ready(msgspec.convert(at, Listening)), stop, at_once)
        else:
            await _front_end(settings, group or Group(hub.handlers, hub.call), ready, stop, at_once)


async def _front_end(
    settings: Settings, group: Group, ready: Ready, stop: asyncio.Event, at_once: asyncio.Event
) -> None:
    loop = asyncio.get_running_loop()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # every socket is a file
    keep_one_heap()
    async with contextlib.AsyncExitStack() as held:
        context = tls.context(settings.tls) if settings.tls else None
        sockets = ports.bound_all(settings.host, settings.ports, held, shared=settings.processes > 1)
        models = Models(loop, device=settings.device, overrides=settings.config, limit=settings.limits.requests)
        held.push_async_callback(models.close)
        simulator = None
        if sim := settings.sim:
            simulator = Simulator(sim, loop, *((group.number, group.freeze) if group.is_shared else ()))
            held.callback(simulator.close)
            models.add_source(ModelSource(sim.model, config=KSERVE_CONFIG, loader=simulator.loaded))
        for source in settings.models:
            models.add(source)
        group.join(models, simulator)
        if not await done_before(stop, group.started(models.start())):
            return
        web = Web(settings, models, simulator, group.metrics)
        grpc = await start_grpc(models, settings, sockets["grpc"]) if "grpc" in sockets else None
        if grpc is not None:
            held.push_async_callback(grpc.stop, 0)
        gc.collect()
        gc.freeze()
        gc.set_threshold(_YOUNG if settings.models else _YOUNG_FOR_TIMING, 10, 10)
        listeners = []
        only_metrics = Web(settings, models, None, group.metrics, has_models=False)
        for name, handler in (("http", web), ("metrics", only_metrics)):
            if name in sockets:  # another process may have taken the port while models were loaded
                host, port = sockets[name].getsockname()[:2]
                with ports.explained(host, port, f"--{name}"):
                    listeners.append(Listener(loop, sockets[name], handler.connect, settings.limits, context))
                held.callback(listeners[-1].close)
        ready(_listening(settings, sockets, models))
        await stop.wait()
        await _drain(settings.drain, at_once, models, web, listeners, grpc)


# --- the end ---------------------------------------------------------------------------------------------------------


async def _drain(
    seconds: float,
    at_once: asyncio.Event,
    models: Models,
    web: Web,
    listeners: list[Listener],
    grpc: KserveGrpc | None,
) -> None:
    if grpc is not None:
        grpc.health.set_serving(False)
    models.say_not_ready()
    if seconds:
        await done_before(at_once, asyncio.sleep(min(seconds, _ANNOUNCED_S)))
    models.refuse_new()
    for listener in listeners:
        listener.stop_accepting()
    if seconds:  # gRPC gets longer, to send errors to the rest
        leaving = [_quiet(listeners)] if grpc is None else [_quiet(listeners), grpc.stop(seconds + 1)]
        await done_before(at_once, asyncio.gather(*leaving), seconds)
    why = "the server stopped before the request was complete"
    partial = sum(listener.refuse_partial(why) for listener in listeners)
    if web.refuse_rest() + models.in_flight:
        await models.close()
        await asyncio.sleep(_LOOK_S)
    # Clients that are still sending get a second to read the error.
    while seconds and partial and not at_once.is_set() and any(listener.leaving for listener in listeners):
        await asyncio.sleep(_LOOK_S)


async def _quiet(listeners: list[Listener]) -> None:
    """Wait until all responses are sent, also to requests that were still arriving, and no new request has come for a
    moment: requests may cross our announcement on the wire."""
    quiet_from = 0
    while not quiet_from or now() - quiet_from < _GOODBYE_NS:
        busy = any(listener.in_flight for listener in listeners)
        quiet_from = 0 if busy else quiet_from or now()
        await asyncio.sleep(_LOOK_S)


def _listening(settings: Settings, sockets: dict[str, socket.socket], models: Models) -> Listening:
    scheme, channel = ("https", "grpcs") if settings.tls else ("http", "grpc")
    at = {name: ports.place(*sock.getsockname()[:2]) for name, sock in sockets.items()}
    return Listening(
        http=f"{scheme}://{at['http']}",
        grpc=f"{channel}://{at['grpc']}" if "grpc" in at else "",
        metrics=f"{scheme}://{at['metrics']}/metrics" if "metrics" in at else "",
        models=tuple(models.names()),
        failed=tuple((one.name, one.reason) for one in models.index() if one.state != "READY"),
    )
