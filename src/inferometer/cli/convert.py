"""`inferometer convert`: other tools' config files and command lines as our YAML."""

import click


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("-o", "--output", metavar="FILE", help="Write the YAML to this file. Default: standard output.")
@click.argument("source", metavar="FILE | -- COMMAND...", nargs=-1, required=True)
def command(output: str | None, source: tuple[str, ...]) -> int:
    """Turn an inference-perf config, or a command line of vllm bench serve, perf_analyzer or simple_perf_client.py, into a file for inferometer run.

    \b
    A config file of inference-perf
      inferometer convert config.yml -o bench.yaml
    A command line: put -- in front of it
      inferometer convert -- vllm bench serve --model M --random-input-len 512
      inferometer convert -- perf_analyzer -m resnet --concurrency-range 1:8:2
    A script with a command line, with or without line continuations
      inferometer convert command.sh
    Then measure
      inferometer run bench.yaml

    The YAML contains every setting whose default differs between the tools, and comments about what is not the same. An option
    whose meaning cannot be kept is an error that names it. API keys are never written: the file names the environment variable
    from which they are read.

    Exit status: 0 converted, 2 an option is unknown or cannot be translated, 3 internal error.
    """
    from inferometer.compat.converting import convert, to_yaml  # noqa: PLC0415
    from inferometer.report.output import check_paths, write_file  # noqa: PLC0415

    check_paths({"--output": output})
    converted = convert(source)
    text = to_yaml(converted)
    for warning in converted.warnings:
        click.echo(f"inferometer: {warning}", err=True)
    if output is None:
        click.echo(text, nl=False)
    else:
        write_file(output, lambda file: file.write(text.encode()))
    return 0
