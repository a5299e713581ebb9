"""The plain manifests: built by kubectl's kustomize and validated like the chart."""

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from kubernetes_tools import ROOT, VERSIONS, assert_restricted, resources, violations

import inferometer
from inferometer import config

MANIFESTS = ROOT / "deploy" / "kubernetes"
pytestmark = [
    pytest.mark.kubernetes,
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl not found"),
]


def build(folder: str) -> str:
    command = ["kubectl", "kustomize", MANIFESTS / folder]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("folder", ["base", "overlays/s3", "overlays/inference-perf"])
def test_manifests_are_valid(tmp_path: Path, folder: str) -> None:
    text = build(folder)
    for version in VERSIONS:
        assert violations(text, tmp_path, version) == ""
    kinds = {resource["kind"]: resource for resource in resources(text)}
    pod = kinds["Job"]["spec"]["template"]["spec"]
    assert_restricted(pod)
    assert {"name": "config", "configMap": {"name": kinds["ConfigMap"]["metadata"]["name"]}} in pod["volumes"]
    assert ("PersistentVolumeClaim" in kinds) == (folder != "overlays/s3")
    assert pod["containers"][0]["image"] == f"inferometer:{inferometer.__version__}"


def test_examples_beside_the_manifests(tmp_path: Path) -> None:
    config.from_mapping(yaml.safe_load((MANIFESTS / "base" / "config.yaml").read_text()))
    assert violations((MANIFESTS / "base" / "secret.example.yaml").read_text(), tmp_path, VERSIONS[0]) == ""
