"""A gRPC client that ignores the server's limits: HTTP/2 with the package h2, one connection, one call at a time.

grpcio's own client would hold back what exceeds the limits that the server announces.
"""

import socket

import h2.config
import h2.connection
import h2.events
from h2.settings import SettingCodes

PATIENCE_S = 30
NO_MESSAGE = bytes(5)
"""A frame with an empty message."""


class RawGrpc:
    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._sock = socket.create_connection((host.strip("[]"), int(port)), timeout=PATIENCE_S)
        self._http = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
        self._http.initiate_connection()
        self._send()
        self.announced: dict[int, int] = {}
        """The server's settings."""
        while not self.announced:
            for event in self._events():
                if isinstance(event, h2.events.RemoteSettingsChanged):
                    self.announced |= {code: one.new_value for code, one in event.changed_settings.items()}

    @property
    def max_streams(self) -> int:
        return self.announced[SettingCodes.MAX_CONCURRENT_STREAMS]

    def __enter__(self) -> "RawGrpc":
        return self

    def __exit__(self, *_: object) -> None:
        self._sock.close()

    def request(self, path: str, *metadata: tuple[str, str]) -> int:
        """Return the status of a call with an empty message."""
        stream = self._http.get_next_available_stream_id()
        head = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "x")]
        head += [("te", "trailers"), ("content-type", "application/grpc"), *metadata]
        self._http.send_headers(stream, head)
        self._http.send_data(stream, NO_MESSAGE, end_stream=True)
        self._send()
        while True:
            for event in self._events():
                if isinstance(event, h2.events.ResponseReceived | h2.events.TrailersReceived):
                    fields = dict(event.headers)
                    if b"grpc-status" in fields:
                        return int(fields[b"grpc-status"])
                assert not isinstance(event, h2.events.StreamReset | h2.events.ConnectionTerminated), event

    def _events(self) -> list[h2.events.Event]:
        data = self._sock.recv(65536)
        assert data, "the server closed the connection"
        events = self._http.receive_data(data)
        self._send()
        return list(events)

    def _send(self) -> None:
        self._sock.sendall(self._http.data_to_send())
