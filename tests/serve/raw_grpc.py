"""A gRPC client that ignores the server's limits and rules: HTTP/2 with the package h2, one connection, one call at a time.

grpcio's own client would hold back what exceeds the limits that the server announces.
"""

import socket
from collections.abc import Sequence

import h2.config
import h2.connection
import h2.events
from h2.settings import SettingCodes

PATIENCE_S = 30
NO_MESSAGE = bytes(5)
"""A frame with an empty message."""
Response = tuple[dict[str, str], bytes]
"""Headers and trailers, and the body."""


def headers(path: str, *metadata: tuple[str, str], without: Sequence[str] = ()) -> list[tuple[str, str]]:
    usual = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "x")]
    usual += [("te", "trailers"), ("content-type", "application/grpc")]
    replaced = {*without, *(name for name, _ in metadata)}
    pseudo = [pair for pair in metadata if pair[0].startswith(":")]
    kept = [pair for pair in usual if pair[0] not in replaced]
    return [*pseudo, *kept, *(pair for pair in metadata if pair not in pseudo)]


class RawGrpc:
    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.sock = socket.create_connection((host.strip("[]"), int(port)), timeout=PATIENCE_S)
        configuration = h2.config.H2Configuration(client_side=True, validate_outbound_headers=False)
        self.http = h2.connection.H2Connection(configuration)
        self.http.initiate_connection()
        self.send()
        self.announced: dict[int, int] = {}
        """The server's settings."""
        while not self.announced:
            for event in self.events():
                if isinstance(event, h2.events.RemoteSettingsChanged):
                    self.announced |= {code: one.new_value for code, one in event.changed_settings.items()}

    @property
    def max_streams(self) -> int:
        return self.announced[SettingCodes.MAX_CONCURRENT_STREAMS]

    def __enter__(self) -> "RawGrpc":
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def request(self, path: str, *metadata: tuple[str, str]) -> int:
        """Return the status of a call with an empty message."""
        return int(self.exchange(headers(path, *metadata), [NO_MESSAGE])[0]["grpc-status"])

    def exchange(self, head: list[tuple[str, str]], pieces: Sequence[bytes] = (), end: bool = True) -> Response:
        """Send a call in these pieces, each in a frame of its own, and return the response."""
        stream = self.http.get_next_available_stream_id()
        self.http.send_headers(stream, head, end_stream=end and not pieces)
        for i, piece in enumerate(pieces):
            self.http.send_data(stream, piece, end_stream=end and i == len(pieces) - 1)
        self.send()
        fields: dict[str, str] = {}
        body = b""
        while True:
            for event in self.events():
                if isinstance(event, h2.events.ResponseReceived | h2.events.TrailersReceived):
                    fields |= {name.decode(): value.decode() for name, value in event.headers}
                elif isinstance(event, h2.events.DataReceived):
                    body += event.data
                    self.http.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                elif isinstance(event, h2.events.StreamEnded):
                    return fields, body
                assert not isinstance(event, h2.events.StreamReset | h2.events.ConnectionTerminated), event

    def events(self) -> list[h2.events.Event]:
        data = self.sock.recv(65536)
        assert data, "the server closed the connection"
        events = self.http.receive_data(data)
        self.send()
        return list(events)

    def send(self) -> None:
        self.sock.sendall(self.http.data_to_send())
