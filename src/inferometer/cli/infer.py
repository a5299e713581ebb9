"""`inferometer infer`: one request by hand; infer/ does the rest."""

from typing import Any

import click

from inferometer.apis import APIS
from inferometer.errors import UserError

_EPILOG = """
Text, as OpenAI's endpoints have it (streamed as it comes), or with Triton's generate:

\b
inferometer infer http://127.0.0.1:8000 --prompt Hello
inferometer infer http://127.0.0.1:8000 --api generate --model m --prompt Hi

Tensors, for KServe v2 servers (Triton and others), over gRPC or HTTP. What is not given is made from the model's metadata;
a decoupled model's answers are streamed, and all of them shown:

\b
inferometer infer grpc://127.0.0.1:8001 --model identity
inferometer infer grpc://127.0.0.1:8001 --model classifier --image cat.jpg
inferometer infer http://127.0.0.1:8000 --model m --input A=@a.npy --input B=1
inferometer infer http://127.0.0.1:8000 --model m --fill zeros --shape A=1,100

Any method of any gRPC service, JSON in and out; its types are asked of the server (reflection) or read from --proto:

\b
inferometer infer grpc://127.0.0.1:8001 --method pkg.Svc/Do --data '{"a": 1}'

Then it says where the time went: connect, send, wait for the first byte, receive; and what the server says of its own part.
Exit status: 0 answered, 2 not.
"""


@click.command(epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.argument("url")
@click.option("--model", help="Model to ask (default: the first that the server lists).")
@click.option("--version", help="KServe: its version (default: the server's choice).")
@click.option(
    "--api",
    type=click.Choice(["auto", *APIS]),
    default="auto",
    help="What to speak. auto: chat for a prompt, kserve for tensors, grpc for a --method.",
)
@click.option(
    "--stream/--no-stream",
    default=None,
    help="Have the answer streamed, or not (default: text is, tensors only of decoupled models).",
)
@click.option("--prompt", metavar="TEXT", help="Text: what to ask.")
@click.option("--max-tokens", type=click.IntRange(min=0), default=0, help="Text: how long the answer may be.")
@click.option(
    "--input", "inputs", multiple=True, metavar="NAME=VALUE",
    help="Tensors: @FILE.npy; numbers 1,2,3; @FILE, whose bytes are a BYTES element or raw data; or text for BYTES. "
    "NAME= may be left out where the model has one input. Repeatable.",
)  # fmt: skip
@click.option(
    "--shape", "shapes", multiple=True, metavar="NAME=1,3,224,224",
    help="Tensors: an input's full shape, the batch included (default: as the data has it; made up: 1 where any will do).",
)  # fmt: skip
@click.option(
    "--fill", type=click.Choice(["zeros", "random"]),
    help="Tensors: what to make up for inputs that are not given (default: random, where none is given).",
)  # fmt: skip
@click.option(
    "--image",
    metavar="FILE",
    help="Tensors: an image, decoded, resized, laid out and scaled as the model's input asks.",
)
@click.option(
    "--scaling", type=click.Choice(["none", "inception", "vgg"]),
    help="Image: 0..255; -1..1; or less the mean of each channel (default: inception for floats, none for whole numbers).",
)  # fmt: skip
@click.option(
    "--classes", type=click.IntRange(min=0), metavar="N",
    help="Tensors: show the N best classes of an output of scores (default: 5 for an image or labels; 0: the values).",
)  # fmt: skip
@click.option("--labels", metavar="FILE", help="Tensors: names of the classes, one a line (default: Triton's own).")
@click.option("--output", "outputs", multiple=True, metavar="NAME", help="Tensors: ask for this output. Repeatable.")
@click.option("--method", metavar="PKG.SERVICE/METHOD", help="gRPC: call this method.")
@click.option(
    "--data",
    metavar="JSON|@FILE",
    help="gRPC: its request; a list is a stream of several; @FILE.bin is one encoded message (default: {}).",
)
@click.option("--proto", metavar="FILE", help="gRPC: a .proto file or a descriptor set (default: reflection).")
@click.option(
    "--parameter", "parameters", multiple=True, metavar="NAME=VALUE",
    help="A parameter of the request; for chat and completions a field of its body: temperature=0. Repeatable.",
)  # fmt: skip
@click.option("--header", "headers", multiple=True, metavar="NAME:VALUE", help="A header, gRPC: metadata. Repeatable.")
@click.option("--api-key-env", metavar="VARIABLE", help="Environment variable that holds the API key.")
@click.option("--api-key-file", metavar="FILE", help="File that holds the API key.")
@click.option(
    "--timeout", default="60s", show_default=True, metavar="TIME", help="The longest wait for bytes; 0: none."
)
@click.option("--deadline", metavar="TIME", help="gRPC: how long the call may take, which the server is told.")
@click.option("--insecure", is_flag=True, help="TLS: do not check the server's certificate.")
@click.option("--ca", metavar="FILE", help="TLS: PEM file of the CA to trust.")
@click.option("--cert", metavar="FILE", help="Mutual TLS: PEM file of your own certificate, with its key or see --key.")
@click.option("--key", metavar="FILE", help="Mutual TLS: PEM file of its key.")
@click.option("--json", "json_path", metavar="PATH", help="Write the result there as JSON (- is standard output).")
@click.option("--save", metavar="FILE.npz", help="Tensors: write the outputs there as numpy arrays.")
def command(json_path: str | None, **given: Any) -> int:
    """Ask the server at URL once, show its answer, and say where the time went."""
    from inferometer.infer import export, show  # noqa: PLC0415
    from inferometer.infer.flags import InferFlags  # noqa: PLC0415
    from inferometer.infer.infer import infer  # noqa: PLC0415
    from inferometer.report.out import check_paths, wants_color  # noqa: PLC0415
    from inferometer.report.out import export as deliver  # noqa: PLC0415

    check_paths(json_path, None)
    check_paths(given["save"], None)
    quiet = json_path == "-"
    heard = _Heard(quiet)
    try:
        outcome = infer(InferFlags(**given), heard)
    except UserError:
        heard.end()
        raise
    heard.end(blank=True)
    result = outcome.result
    if not quiet:
        click.echo(show.render(result, wants_color()), nl=False, color=True)
    if json_path is not None:
        deliver(json_path, lambda file: file.write(export.to_json(result, outcome.error)))
    if given["save"] is not None:
        data = export.to_npz(result)
        deliver(given["save"], lambda file: file.write(data))
    outcome.whom.raise_for(outcome.fail)
    return 0


class _Heard:
    """Prints a text as it comes."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._last = ""

    def __call__(self, text: str) -> None:
        from inferometer.infer.show import harmless  # noqa: PLC0415

        if not self._quiet:
            self._last = text
            click.echo(harmless(text), nl=False)

    def end(self, blank: bool = False) -> None:
        """The line that it stands on is over, and a blank one follows."""
        if self._last:
            click.echo("\n" * ((not self._last.endswith("\n")) + blank), nl=False)
        self._last = ""
