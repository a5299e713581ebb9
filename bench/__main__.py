"""`python -m bench [NAME ...]`: runs all benchmarks, or those named."""

import importlib
import sys

NAMES = (
    "truth",
    "coverage",
    "decisions",
    "comparison",
    "capacity",
    "throughput",
    "verdict",
    "ceiling",
    "pacing",
    "sessions",
    "fleet",
    "scrape",
    "trace_replay",
    "report",
    "grpc",
    "triton",
    "server",
    "workload",
    "soak",
    "large_workload",
    "footprint",
    "connection_memory",
)


def main() -> int:
    wanted = sys.argv[1:] or NAMES
    if unknown := set(wanted) - set(NAMES):
        print(f"unknown benchmark {', '.join(sorted(unknown))}; choose from {', '.join(NAMES)}", file=sys.stderr)
        return 2
    return max(importlib.import_module(f"bench.{name}").main() for name in wanted)


if __name__ == "__main__":
    sys.exit(main())
