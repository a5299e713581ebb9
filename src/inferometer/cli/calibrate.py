"""`inferometer calibrate`: what this machine itself can do."""

import click


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--seconds", type=click.FloatRange(1, 60), default=4.0, show_default=True, help="How long each of the steps runs."
)
@click.option("--json", "json_path", metavar="PATH", help="Write the numbers there too (- is standard output).")
def command(seconds: float, json_path: str | None) -> int:
    """Measure this machine's own ceiling and added latency, against a null server on loopback.

    Trust no latency below the added latency, and no rate near the ceiling: what this machine adds itself is in them. One
    client process is measured; a run may use several (client.processes).
    """
    import msgspec  # noqa: PLC0415
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    from inferometer.calibrate import RATES, STEPS, calibrate  # noqa: PLC0415
    from inferometer.report.out import check_paths, export  # noqa: PLC0415
    from inferometer.units import format_seconds  # noqa: PLC0415

    check_paths(json_path, None)
    progress = Console(stderr=True)
    done = 0

    def note(step: str) -> None:
        nonlocal done
        done += 1
        progress.print(f"[dim]{done}/{STEPS}[/dim] {step}", highlight=False)

    found = calibrate(seconds, note)
    if json_path != "-":
        table = Table.grid(padding=(0, 3))
        rows = [
            (
                "ceiling",
                f"{found.requests_per_second:,.0f} requests/s",
                f"{format_seconds(found.cpu_per_request)} of CPU each",
            ),
            (
                "streaming",
                f"{found.chunks_per_second:,.0f} chunks/s a core",
                f"{format_seconds(found.cpu_per_chunk)} of CPU each",
            ),
            (
                "added latency",
                f"{format_seconds(found.added_latency_p50)} p50",
                f"{format_seconds(found.added_latency_p99)} p99",
            ),
            (
                "error of a gap",
                f"{format_seconds(found.itl_error_p50)} p50",
                f"{format_seconds(found.itl_error_p99)} p99",
            ),
        ]
        for rate in RATES:
            rows.append(
                (
                    f"lag at {rate:,}/s",
                    f"{format_seconds(found.lag_p50[str(rate)])} p50",
                    f"{format_seconds(found.lag_p99[str(rate)])} p99",
                )
            )
        rows.append(("clock", f"{found.stamps} stamps", found.timer))
        for row in rows:
            table.add_row(*row)
        Console(highlight=False).print(table)
    if json_path is not None:
        export(json_path, lambda file: file.write(msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n"))
    return 0
