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
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec

from inferometer.serve import metrics, ports
from inferometer.serve.backends import simulator as text_model
from inferometer.serve.memory import keep_one_heap
from inferometer.serve.models.registry import Models
from inferometer.serve.processes.group import Group
from inferometer.serve.processes.hub import Hub
from inferometer.serve.settings import Settings, check
from inferometer.serve.sim.server import Simulator
from inferometer.serve.sockets import tls
from inferometer.serve.sockets.listener import Listener
from inferometer.serve.web import Web
from inferometer.timing.clock import now

if TYPE_CHECKING:
    from inferometer.serve.kserve.grpc import KserveGrpc

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


async def serve(settings: Settings, ready: Ready, stop: asyncio.Event | None = None) -> None:
    """Serve until SIGINT, SIGTERM or `stop`; `ready` is called with the addresses once the server listens."""
    check(settings)
    stop, at_once = _on_signals(stop)
    async with Hub() as hub:
        if settings.processes > 1:
            await hub.supervise(settings, lambda at: ready(msgspec.convert(at, Listening)), stop, at_once)
        else:
            await _front_end(settings, Group(hub.handlers, hub.call), ready, stop, at_once)


async def serve_part(settings: Settings, group: Group, ready: Ready) -> None:
    """Be one of several front ends until SIGTERM."""
    await _front_end(settings, group, ready, *_on_signals())


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
        simulator = _simulator(settings, models, held, group)
        for source in settings.models:
            models.add(source)
        started = time.time()
        group.join(
            models, lambda: metrics.page(models, started) + (simulator.metrics() if simulator else b""), simulator
        )
        if not await _done_before(stop, group.started(models.start())):
            return
        web = Web(settings, models, simulator, group.metrics)
        grpc = await _grpc(settings, models, sockets, held)
        gc.collect()
        gc.freeze()
        gc.set_threshold(_YOUNG if settings.models else _YOUNG_FOR_TIMING, 10, 10)
        listeners = []
        for name, handler in (("http", web), ("metrics", Web(settings, metrics=group.metrics))):
            if name in sockets:  # another process may have taken the port while models were loaded
                host, port = sockets[name].getsockname()[:2]
                with ports.explained(host, port, f"--{name}"):
                    listeners.append(Listener(loop, sockets[name], handler.connect, settings.limits, context))
                held.callback(listeners[-1].close)
        ready(_listening(settings, sockets, models))
        await stop.wait()
        await _drain(settings.drain, at_once, models, web, listeners, grpc)


async def _done_before(event: asyncio.Event, work: Awaitable[Any], seconds: float | None = None) -> bool:
    """Return whether the work was done before the event and within the time; otherwise it is abandoned."""
    working, waiting = asyncio.ensure_future(work), asyncio.ensure_future(event.wait())
    await asyncio.wait((working, waiting), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    is_done = working.done()
    for task in (working, waiting):
        task.cancel()
    await asyncio.gather(working, waiting, return_exceptions=True)
    if is_done:
        working.result()
    return is_done


def _simulator(settings: Settings, models: Models, held: contextlib.AsyncExitStack, group: Group) -> Simulator | None:
    """Return the simulator's OpenAI endpoints, and register the simulator as a text model."""
    if settings.sim is None:
        return None
    of_all = (group.number, group.freeze) if group.is_shared else ()
    simulator = Simulator(settings.sim, models.loop, *of_all)
    held.callback(simulator.close)
    models.add_own(settings.sim.model, text_model.CONFIG, text_model.loader(simulator))
    return simulator


async def _grpc(
    settings: Settings, models: Models, sockets: dict[str, socket.socket], held: contextlib.AsyncExitStack
) -> "KserveGrpc | None":
    if "grpc" not in sockets:
        return None
    from inferometer.serve.kserve import grpc  # noqa: PLC0415  (protobuf: not for a simulator over HTTP)

    server = await grpc.start(models, settings, sockets["grpc"])
    held.push_async_callback(server.stop, 0)
    return server


# --- the end ---------------------------------------------------------------------------------------------------------


async def _drain(
    seconds: float,
    at_once: asyncio.Event,
    models: Models,
    web: Web,
    listeners: list[Listener],
    grpc: "KserveGrpc | None",
) -> None:
    if grpc is not None:
        grpc.health.set_serving(False)
    models.say_not_ready()
    if seconds:
        await _done_before(at_once, asyncio.sleep(min(seconds, _ANNOUNCED_S)))
    models.refuse_new()
    for listener in listeners:
        listener.stop_accepting()
    if seconds:  # gRPC gets longer, to send errors to the rest
        leaving = [_quiet(listeners)] if grpc is None else [_quiet(listeners), grpc.stop(seconds + 1)]
        await _done_before(at_once, asyncio.gather(*leaving), seconds)
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


def _on_signals(stop: asyncio.Event | None = None) -> tuple[asyncio.Event, asyncio.Event]:
    """Return events that the first signal and the next one set. (If `stop` was already set, the first signal changes
    nothing.)"""
    stop, at_once = stop or asyncio.Event(), asyncio.Event()
    means = itertools.chain([stop], itertools.repeat(at_once))
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, lambda: next(means).set())
    return stop, at_once


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
