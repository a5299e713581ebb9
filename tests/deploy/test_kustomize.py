"""The plain manifests: built by kubectl's kustomize and validated like the chart."""

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from kubernetes_tools import ROOT, VERSIONS, assert_restricted, resources, violations

import inferometer
from inferometer import config
from inferometer.conduct.parts import parse_part
from inferometer.prepare.setup import Part

MANIFESTS = ROOT / "deploy" / "kubernetes"
pytestmark = [
    pytest.mark.kubernetes,
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl not found"),
]


def build(folder: str) -> str:
    command = ["kubectl", "kustomize", MANIFESTS / folder]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("folder", ["base", "overlays/s3", "overlays/inference-perf", "overlays/indexed-job"])
def test_manifests_are_valid(tmp_path: Path, folder: str) -> None:
    text = build(folder)
    for version in VERSIONS:
        assert violations(text, tmp_path, version) == ""
    kinds = {resource["kind"]: resource for resource in resources(text)}
    pod = kinds["Job"]["spec"]["template"]["spec"]
    assert_restricted(pod)
    assert {"name": "config", "configMap": {"name": kinds["ConfigMap"]["metadata"]["name"]}} in pod["volumes"]
    assert ("PersistentVolumeClaim" in kinds) == (folder not in ("overlays/s3", "overlays/indexed-job"))
    assert pod["containers"][0]["image"] == f"inferometer:{inferometer.__version__}"


def test_every_pod_of_the_indexed_job_measures_another_part() -> None:
    (job,) = (each for each in resources(build("overlays/indexed-job")) if each["kind"] == "Job")
    spec, (container,) = job["spec"], job["spec"]["template"]["spec"]["containers"]
    assert spec["completionMode"] == "Indexed"
    assert spec["completions"] == spec["parallelism"] > 1, "all parts must run at the same time"
    assert f"--shard=auto/{spec['completions']}" in container["args"]
    for index in range(spec["completions"]):
        environment = {"JOB_COMPLETION_INDEX": str(index)}
        shard = next(each.removeprefix("--shard=") for each in container["args"] if each.startswith("--shard="))
        assert parse_part(shard, environment) == Part(index, spec["completions"])
    assert {"name": "AWS_REGION", "value": "eu-central-1"} in container["env"]  # from the overlay below
    script = (MANIFESTS / "overlays" / "indexed-job" / "kustomization.yaml").read_text()
    assert "--start-at=START_AT" in container["args"] and "s/START_AT/$START_AT/" in script


def test_examples_beside_the_manifests(tmp_path: Path) -> None:
    config.from_mapping(yaml.safe_load((MANIFESTS / "base" / "config.yaml").read_text()))
    assert violations((MANIFESTS / "base" / "secret.example.yaml").read_text(), tmp_path, VERSIONS[0]) == ""
