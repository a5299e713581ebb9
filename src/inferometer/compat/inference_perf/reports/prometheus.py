"""prometheus: stub."""

from typing import Any

from inferometer.compat.inference_perf.reports.requests import Requests
from inferometer.compat.inference_perf.spec import Spec


def reports(requests: Requests, spec: Spec) -> dict[str, Any]:
    return {}
