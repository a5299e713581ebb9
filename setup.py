"""The build's one step of our own: src/inferometer/proto/*.proto become descriptor sets (*.binpb) beside them.

The package reads those at run time, so that nobody needs a protobuf compiler to use it. The step is a command of `build`
before `build_py`, which then takes the sets along as package data: editable installs, wheels and wheels made from an
sdist get them alike. (A `build_py` of our own would do too, but setuptools keeps its errors quiet in editable installs.)
All else is in pyproject.toml.
"""

from pathlib import Path

from setuptools import Command, setup
from setuptools.command.build import build

FOLDER = Path(__file__).parent / "src" / "inferometer" / "proto"


class BuildProtos(Command):
    description = "compile the .proto files to descriptor sets"
    user_options: list[tuple[str, str, str]] = []  # noqa: RUF012 - setuptools wants a list
    editable_mode = False

    def initialize_options(self) -> None:
        pass

    def finalize_options(self) -> None:
        pass

    def run(self) -> None:
        from grpc_tools import protoc  # noqa: PLC0415 - what only makes an sdist or asks for metadata does without

        for proto in sorted(FOLDER.glob("*.proto")):
            made = proto.with_suffix(".binpb")
            arguments = ["protoc", f"-I{FOLDER}", "--include_imports", f"--descriptor_set_out={made}", str(proto)]
            if protoc.main(arguments):
                raise SystemExit(f"{proto}: protoc could not compile it; its messages are above")

    def get_source_files(self) -> list[str]:
        root = Path(__file__).parent
        return [proto.relative_to(root).as_posix() for proto in sorted(FOLDER.glob("*.proto"))]

    def get_outputs(self) -> list[str]:
        return []  # build_py copies the sets as package data

    def get_output_mapping(self) -> dict[str, str]:
        return {}


class Build(build):
    sub_commands = [("build_protos", None), *build.sub_commands]  # noqa: RUF012 - setuptools' own form


setup(cmdclass={"build": Build, "build_protos": BuildProtos})
