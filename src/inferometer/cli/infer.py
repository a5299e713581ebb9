"""`inferometer infer`: a single request; the work is done in infer/."""

from typing import Any

import click

from inferometer.apis import APIS
from inferometer.cli.options import Command, options_of
from inferometer.errors import UserError

_EPILOG = """
Text, from OpenAI-style servers (shown as it arrives) or from Triton's generate; and embeddings:

\b
inferometer infer http://127.0.0.1:8000 --prompt Hello
inferometer infer http://127.0.0.1:8000 --api embeddings --prompt Hello
inferometer infer http://127.0.0.1:8000 --api generate --model m --prompt Hi

Tensors, from KServe v2 servers such as Triton, over gRPC or HTTP. Inputs that are not given are generated from the model's
metadata; the responses of a decoupled model are streamed, and all of them are shown:

\b
inferometer infer grpc://127.0.0.1:8001 --model identity
inferometer infer grpc://127.0.0.1:8001 --model classifier --image shapes.jpg
inferometer infer http://127.0.0.1:8000 --model m --input A=@a.npy --input B=1
inferometer infer http://127.0.0.1:8000 --model m --fill zeros --shape A=1,100

Any method of any gRPC service, with JSON in and out. Its types come from the server (reflection) or from --proto:

\b
inferometer infer grpc://127.0.0.1:8001 --method pkg.Svc/Do --data '{"a": 1}'

The output ends with where the time went: connect, send, wait for the first byte, receive; and the server's own account of its
part. A URL without http:// or grpc:// is tried as both. Exit status: 0 there is a response, 2 there is none.
"""


@click.command(cls=Command, epilog=_EPILOG, context_settings={"max_content_width": 100})
@click.argument("url")
@options_of("infer")
@click.option("--version", help="KServe: version of the model (default: the server's choice).")
@click.option(
    "--api",
    type=click.Choice(["auto", *APIS]),
    metavar="API",
    default="auto",
    help=f"API to use: {', '.join(APIS)}. auto: chat for a prompt, kserve for tensors or a tensor server, grpc for a --method.",
)
@click.option(
    "--stream/--no-stream",
    default=None,
    help="Stream the response, or not (default: text is streamed, tensors only from decoupled models).",
)
@click.option("--prompt", metavar="TEXT", help="Text: the prompt, or the text to embed.")
@click.option("--output", "outputs_or_length", multiple=True, hidden=True)
@click.option(
    "--input", "inputs", multiple=True, metavar="NAME=VALUE",
    help="Tensors: @FILE.npy; numbers 1,2,3; @FILE, whose bytes are a BYTES element or raw data; or text for BYTES. "
    "NAME= may be left out if the model has one input. Repeatable.",
)  # fmt: skip
@click.option(
    "--shape", "shapes", multiple=True, metavar="NAME=1,3,224,224",
    help="Tensors: full shape of an input, including the batch (default: that of the data; if generated, 1 for open dimensions).",
)  # fmt: skip
@click.option(
    "--fill", type=click.Choice(["zeros", "ones", "random"]),
    help="Tensors: how to generate inputs that are not given (default: random, if none is given).",
)  # fmt: skip
@click.option(
    "--image",
    "images",
    multiple=True,
    metavar="FILE|FOLDER",
    help="Tensors: an image, decoded, resized, laid out and scaled as the model expects. Repeatable, or a folder: sent as one batch.",
)
@click.option(
    "--classes", type=click.IntRange(min=0), metavar="N",
    help="Tensors: show the N top classes of an output of scores (default: 5 with --image or --labels; 0: the values).",
)  # fmt: skip
@click.option("--labels", metavar="FILE", help="Tensors: names of the classes, one per line (default: Triton's own).")
@click.option("--tensor", "outputs", multiple=True, metavar="NAME", help="Tensors: request this output. Repeatable.")
@click.option("--method", metavar="PKG.SERVICE/METHOD", help="gRPC: the method to call.")
@click.option(
    "--data",
    metavar="JSON|@FILE",
    help="gRPC: the request; a list is a stream of several; @FILE.bin is one encoded message (default: {}).",
)
@click.option("--proto", metavar="FILE", help="gRPC: a .proto file or a descriptor set (default: reflection).")
@click.option(
    "--parameter", "parameters", multiple=True, metavar="NAME=VALUE",
    help="A parameter of the request; for OpenAI's APIs a field of its body: temperature=0. Repeatable.",
)  # fmt: skip
@click.option(
    "--timing", multiple=True, metavar="queue|compute|total=NAME",
    help="Parameter or field of the response that has the server's own time, such as compute=server_us. Repeatable.",
)  # fmt: skip
@click.option(
    "--timeout",
    default="60s",
    show_default=True,
    metavar="TIME",
    help="Longest wait for bytes; a response may take ten times as long. 0: no limit.",
)
@click.option("--deadline", metavar="TIME", help="gRPC: time limit of the call; it is sent to the server as well.")
@click.option("--ca", metavar="FILE", help="TLS: PEM file of the CA to trust.")
@click.option(
    "--cert", metavar="FILE", help="Mutual TLS: PEM file of the client certificate (with its key, or see --key)."
)
@click.option("--key", metavar="FILE", help="Mutual TLS: PEM file of the certificate's key.")
@click.option("--save", metavar="FILE.npz", help="Tensors: write the outputs to this file as numpy arrays.")
def command(
    json: str | None,
    output_tokens: int | None,
    outputs_or_length: tuple[str, ...],
    outputs: tuple[str, ...],
    **given: Any,
) -> int:
    """Send one request to the server at URL, show the response, and where the time went."""
    from inferometer.infer import export, show  # noqa: PLC0415
    from inferometer.infer.flags import InferFlags  # noqa: PLC0415
    from inferometer.infer.infer import infer  # noqa: PLC0415
    from inferometer.report.output import check_paths, wants_color, write_file  # noqa: PLC0415

    check_paths({"--json": json, "--save": given["save"]})
    given["header"] = given["header"] or {}
    quiet = json == "-"
    lengths = [int(text) for text in outputs_or_length if text.isdecimal()]  # --output is how scripts say either
    outputs += tuple(text for text in outputs_or_length if not text.isdecimal())
    max_tokens = max([output_tokens or 0, *lengths])
    printer = _TextPrinter(quiet)
    try:
        outcome = infer(InferFlags(max_tokens=max_tokens, outputs=outputs, **given), printer)
    except UserError:
        printer.end()
        raise
    printer.end(blank=True)
    result = outcome.result
    if not quiet:
        click.echo(show.render(result, wants_color()), nl=False, color=True)
    if json is not None:
        write_file(json, lambda file: file.write(export.to_json(result, outcome.error)))
    if given["save"] is not None:
        data = export.to_npz(result)
        write_file(given["save"], lambda file: file.write(data))
    outcome.raise_for_failure()
    return 0


class _TextPrinter:
    """Prints text as it arrives."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._last = ""

    def __call__(self, text: str) -> None:
        from inferometer.printable import printable  # noqa: PLC0415

        if not self._quiet:
            self._last = text
            click.echo(printable(text), nl=False)

    def end(self, blank: bool = False) -> None:
        """End the current line, if there is one, and add a blank line."""
        if self._last:
            click.echo("\n" * ((not self._last.endswith("\n")) + blank), nl=False)
        self._last = ""
