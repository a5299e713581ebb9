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
import signal
from collections.abc import Callable

import msgspec

from inferometer.serve.kserve.grpc import KserveGrpc
from inferometer.serve.models.registry import Models
from inferometer.serve.models.repository import ModelSource
from inferometer.serve.offload import done_before
from inferometer.serve.processes.hub import Group, Hub
from inferometer.serve.processes.link import Link
from inferometer.serve.settings import Settings, check
from inferometer.serve.sim.server import KSERVE_CONFIG, Simulator
from inferometer.serve.sockets.listener import Listener, bound, place
from inferometer.serve.sockets.transport import tls_context
from inferometer.serve.web import Web

_SIGNALS = signal.SIGINT, signal.SIGTERM
_ANNOUNCED_S = 0.1
"""Time between reporting not ready and refusing the first request, so that load balancers notice first."""
_LOOK_S = 0.01
_URLS = {"http": "http%s://%s", "grpc": "grpc%s://%s", "metrics": "http%s://%s/metrics"}
_YOUNG, _YOUNG_FOR_TIMING = 5_000, 100_000
"""New objects between two garbage collections. Collecting more at once takes milliseconds, which would delay simulated
tokens; but garbage from requests should not pile up."""


class Listening(msgspec.Struct, frozen=True):
    """The addresses of a running server; "" for what is not served."""

    http: str
    grpc: str = ""
    metrics: str = ""
    models: tuple[str, ...] = ()  # those that are ready
    failed: tuple[tuple[str, str], ...] = ()  # those that could not be loaded, and why


Ready = Callable[[Listening], None]


async def serve(settings: Settings, ready: Ready, stop: asyncio.Event | None = None, link: Link | None = None) -> None:
    """Serve until SIGINT, SIGTERM or `stop`; `ready` is called with the addresses once the server listens. If there is a
    `link` to a hub, this process is one of its front ends."""
    check(settings)
    stop, at_once = stop or asyncio.Event(), asyncio.Event()
    means = itertools.chain([stop], itertools.repeat(at_once))  # the first signal, and the next ones
    for number in _SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, lambda: next(means).set())
    async with Hub() as hub:
        if settings.processes > 1 and link is None:
            await hub.supervise(settings, lambda at: ready(msgspec.convert(at, Listening)), stop, at_once)
        else:
            await _front_end(settings, link or hub, ready, stop, at_once)


async def _front_end(
    settings: Settings, hub: Hub | Link, ready: Ready, stop: asyncio.Event, at_once: asyncio.Event
) -> None:
    loop, is_shared = asyncio.get_running_loop(), isinstance(hub, Link)
    async with contextlib.AsyncExitStack() as held:
        context = tls_context(settings.tls) if settings.tls else None
        sockets = bound(settings, held, is_shared)
        models = Models(loop, device=settings.device, overrides=settings.config, limit=settings.limits.requests)
        held.push_async_callback(models.close)
        simulator = None
        if sim := settings.sim:
            simulator = Simulator(sim, loop, is_shared)
            held.callback(simulator.close)
            models.add_source(ModelSource(sim.model, config=KSERVE_CONFIG, loader=simulator.loaded))
        for source in settings.models:
            models.add(source)
        group = Group(hub, models, simulator)
        if not await done_before(stop, models.start()):
            return
        grpc = None
        if "grpc" in sockets:
            grpc = KserveGrpc(models, settings, sockets["grpc"])
            held.push_async_callback(grpc.stop, 0)
        listeners = []
        for name in ("http", "metrics"):
            if name in sockets:
                web = Web(settings, models, simulator, group.metrics, has_models=name == "http")
                listeners.append(Listener(sockets[name], web.connect, settings.limits, context))
                held.callback(listeners[-1].close)
        gc.collect()
        gc.freeze()
        gc.set_threshold(_YOUNG if settings.models else _YOUNG_FOR_TIMING, 10, 10)
        s = "s" if settings.tls else ""
        at = {name: _URLS[name] % (s, place(sock.getsockname())) for name, sock in sockets.items()}
        failed = tuple((one.name, one.reason) for one in models.index() if one.state != "READY")
        ready(Listening(**at, models=tuple(models.names()), failed=failed))
        await stop.wait()
        await _drain(settings.drain, at_once, models, listeners, grpc)


async def _drain(
    seconds: float, at_once: asyncio.Event, models: Models, listeners: list[Listener], grpc: KserveGrpc | None
) -> None:
    if grpc is not None:
        grpc.health.set_serving(False)
    models.ready = False  # requests are still accepted, from clients that have not noticed
    if seconds:
        await done_before(at_once, asyncio.sleep(min(seconds, _ANNOUNCED_S)))
    models.refuse_new()
    for listener in listeners:
        listener.stop_accepting()
    if seconds:  # gRPC gets longer, to send errors to the rest
        leaving = [listener.quiet() for listener in listeners] + ([] if grpc is None else [grpc.stop(seconds + 1)])
        await done_before(at_once, asyncio.gather(*leaving), seconds)
    if models.in_flight:
        await models.close()
        await asyncio.sleep(_LOOK_S)
