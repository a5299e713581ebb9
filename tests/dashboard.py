"""The Grafana dashboard, as tests read it."""

import json
import re
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[1] / "docs" / "grafana" / "inferometer.json"
METRIC = re.compile(r"\b(?:inferometer_|vllm:)\w+")


def dashboard() -> dict[str, Any]:
    tree: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return tree


def expressions(rate_interval: str) -> dict[str, str]:
    """All PromQL expressions by where they are, with the variables set as for `All`."""
    tree = dashboard()
    found = {
        f"{panel['title']}: {target['legendFormat']}": target["expr"]
        for panel in tree["panels"]
        for target in panel.get("targets", ())
    }
    found |= {f"annotation {each['name']}": each["expr"] for each in tree["annotations"]["list"] if "expr" in each}
    return {name: _with_variables(expression, rate_interval) for name, expression in found.items()}


def _with_variables(expression: str, rate_interval: str) -> str:
    return re.sub(r"\$\w+", ".*", expression.replace("$__rate_interval", rate_interval))
