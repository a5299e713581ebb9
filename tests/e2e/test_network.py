"""Network and protocol against a truth: a proxy on loopback delays the bytes by a known time, which only the network's time may show."""

import asyncio
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
from helpers import measure

from inferometer.analysis import metrics
from inferometer.serve.background import Running, serving
from inferometer.serve.settings import Settings

DELAY_S = 0.02
"""In each direction."""


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with serving(Settings(models=("identity",), http=0, grpc=0)) as running:
        yield running


@contextmanager
def delayed(url: str) -> Iterator[str]:
    """Forward connections to the server, each byte DELAY_S late; yields the proxy's URL."""
    parts = urlsplit(url)
    loop = asyncio.new_event_loop()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            loop.call_later(DELAY_S, writer.write, data)
        loop.call_later(DELAY_S, writer.close)

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, forth = await asyncio.open_connection(parts.hostname, parts.port)
        await asyncio.gather(forward(reader, forth), forward(back, writer))

    listening = loop.run_until_complete(asyncio.start_server(accept, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield f"{parts.scheme}://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


@pytest.mark.parametrize("protocol", ["http", pytest.param("grpc", marks=pytest.mark.slow)])
def test_a_delay_on_the_way_is_network_and_not_protocol(tmp_path: Path, server: Running, protocol: str) -> None:
    direct = server.url if protocol == "http" else server.grpc
    load = {"type": "closed", "concurrency": 2, "requests": 60}
    options = {
        "server": {"api": "kserve", "model": "identity"},
        "data": {"type": "tensors", "shape": {"INPUT0": [1, 16]}},
    }
    near = measure(tmp_path, direct, load=load, **options)[0].records.rows
    with delayed(direct) as url:
        far = measure(tmp_path, url, load=load, **options)[0].records.rows
    for rows in (near, far):
        assert (rows["failure"] == 0).all() and (rows["server_total"] >= rows["queue"] + rows["compute"]).all()
        total = metrics.network(rows) + metrics.protocol(rows) + metrics.queue(rows) + metrics.compute(rows)
        assert np.allclose(total, metrics.e2e_service(rows))
        if sys.platform == "linux":  # of the first hop, which is not delayed
            assert (rows["rtt"] >= 0).all() and np.median(metrics.rtt(rows)) < DELAY_S / 2
    assert np.median(metrics.network(near)) < DELAY_S / 2
    assert np.min(metrics.network(far)) >= 2 * DELAY_S
    assert np.median(metrics.network(far)) < 3 * DELAY_S
    assert np.median(metrics.protocol(far)) < DELAY_S / 2
