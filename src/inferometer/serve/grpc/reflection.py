"""Server reflection, v1 and v1alpha (with identical messages): the server describes its own services."""

from collections.abc import Sequence
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool

from inferometer.serve.grpc.call import Call
from inferometer.serve.grpc.messages import Data, parse
from inferometer.serve.grpc.server import Service
from inferometer.serve.grpc.status import CODES
from inferometer.wire import protobuf

SERVICES = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")
_SETS = ("kserve", "health", "reflection", "reflection_v1alpha")

_SCHEMA = protobuf.bundled("reflection")
_Request = _SCHEMA.message("grpc.reflection.v1.ServerReflectionRequest")
_Response = _SCHEMA.message("grpc.reflection.v1.ServerReflectionResponse")


class Reflection:
    """Responds to reflection requests from the server's own descriptors."""

    def __init__(self, services: Sequence[str]) -> None:
        self._services = sorted({*services, *SERVICES})
        self._pool = descriptor_pool.DescriptorPool()
        self._files: dict[str, descriptor_pb2.FileDescriptorProto] = {}
        for name in _SETS:
            data = (protobuf.BUNDLED / f"{name}.binpb").read_bytes()
            for file in descriptor_pb2.FileDescriptorSet.FromString(data).file:
                if file.name not in self._files:
                    self._files[file.name] = file
                    self._pool.AddSerializedFile(file.SerializeToString())

    def services(self) -> list[Service]:
        return [Service(name, streaming={"ServerReflectionInfo": self._begin}) for name in SERVICES]

    def _begin(self, call: Call) -> None:
        call.on_message, call.on_ended = self._message, Call.finish

    def _message(self, call: Call, data: Data) -> None:
        call.send(self.respond(parse(_Request, data)).SerializeToString())

    def respond(self, request: Any) -> Any:
        made = _Response(valid_host=request.host, original_request=request)
        kind = request.WhichOneof("message_request")
        if kind == "list_services":
            for name in self._services:
                made.list_services_response.service.add(name=name)
        elif kind == "file_by_filename":
            self._describe(made, request.file_by_filename, request.file_by_filename)
        elif kind == "file_containing_symbol":
            self._describe(made, self._file_of(request.file_containing_symbol), request.file_containing_symbol)
        elif kind == "all_extension_numbers_of_type":  # there are none, of any type
            made.all_extension_numbers_response.base_type_name = request.all_extension_numbers_of_type
        else:
            _error(made, "NOT_FOUND", "extensions are not supported")
        return made

    def _file_of(self, symbol: str) -> str:
        """Return the file that defines a message, field, enum, service or method, or ""."""
        name = symbol.removeprefix(".")
        try:
            return str(self._pool.FindFileContainingSymbol(name).name)
        except KeyError:
            service, _, method = name.rpartition(".")
        try:
            return str(self._pool.FindServiceByName(service).methods_by_name[method].containing_service.file.name)
        except KeyError:
            return ""

    def _describe(self, made: Any, name: str, what: str) -> None:
        """Return the file, followed by its imports."""
        if name not in self._files:
            _error(made, "NOT_FOUND", f"unknown file or symbol {what!r}")
            return
        wanted = [name]
        for file in wanted:
            wanted += [one for one in self._files[file].dependency if one not in wanted]
        for file in wanted:
            made.file_descriptor_response.file_descriptor_proto.append(self._files[file].SerializeToString())


def _error(made: Any, code: str, message: str) -> None:
    made.error_response.error_code = CODES[code]
    made.error_response.error_message = message
