"""Helm, and the schemas of the Kubernetes versions that we claim, as tests call them."""

import json
import subprocess
from pathlib import Path
from typing import Any

import yaml
from needs import INSTALLED

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "inferometer"
TOOLS = INSTALLED / "kubernetes"
VERSIONS = ("1.27", "1.37")
"""The oldest and the newest Kubernetes that we claim: Chart.yaml and docs/how-to/kubernetes.md name them."""

Resource = dict[str, Any]


def render(values: dict[str, Any]) -> dict[str, Any]:
    """Lint and render the chart with Helm 4, for each of the values by name."""
    command = [TOOLS / "bin" / "python", Path(__file__).with_name("render_chart.py")]
    request = json.dumps({"chart": str(CHART), "values": values})
    done = subprocess.run(command, input=request, capture_output=True, text=True, check=True)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def resources(text: str) -> list[Resource]:
    return [resource for resource in yaml.safe_load_all(text) if resource]


def violations(text: str, folder: Path, version: str) -> str:
    """Validate resources strictly; returns what is wrong, or "". Custom resources have no schema, and pass."""
    file = folder / "resources.yaml"
    file.write_text(text)
    command = [TOOLS / "bin" / "kubernetes-validate", "--strict", "--quiet", "--no-warn", "-k", version, file]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr if done.returncode else ""


def assert_restricted(pod: Resource) -> None:
    """Check a Pod's spec against the restricted Pod security standard, and that its root file system is read-only."""
    security = pod["securityContext"]
    assert security["runAsNonRoot"] is True and security["runAsUser"] > 0
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    for container in pod["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
    writable = {mount["mountPath"] for container in pod["containers"] for mount in container["volumeMounts"]}
    assert "/tmp" in writable
    assert {volume["name"] for volume in pod["volumes"]} == {
        mount["name"] for container in pod["containers"] for mount in container["volumeMounts"]
    }
