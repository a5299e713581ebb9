"""The Helm chart: linted, rendered by Helm 3 and 4, and validated for the oldest and the newest Kubernetes that we claim."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes_tools import CHART, ROOT, TOOLS, VERSIONS, Resource, assert_restricted, render, resources, violations

import inferometer
from inferometer import config

VALUES: dict[str, Any] = {"defaults": {}} | {
    path.name.removesuffix("-values.yaml"): yaml.safe_load(path.read_text()) for path in (CHART / "ci").glob("*.yaml")
}
PASSWORD = {"config": "server: {url: 'http://bench:not-a-real-key@vllm.default.svc:8000'}\n"}
REFUSED: dict[str, tuple[Any, str]] = {
    "unknown value": ({"resuls": {"type": "pvc"}}, "resuls"),
    "unknown mode": ({"mode": "sweep"}, "mode"),
    "config as a mapping": ({"config": {"server": {}}}, "config"),
    "bucket without url": ({"results": {"type": "bucket"}}, "results.bucket.url is needed"),
    "bucket of an unknown kind": ({"results": {"bucket": {"url": "http://x"}}}, "url"),
    "bucket with inference-perf": (
        {"mode": "inference-perf", "results": {"type": "bucket", "bucket": {"url": "s3://b"}}},
        "`storage`",
    ),
    "metrics with inference-perf": ({"mode": "inference-perf", "metrics": {"enabled": True}}, "use mode run"),
    "monitor without metrics": ({"metrics": {"serviceMonitor": {"enabled": True}}}, "needs metrics.enabled"),
    "key in args": ({"args": ["--server.api_key", "not-a-real-key"]}, "read the value of --server.api_key;"),
    "key in a setting": (
        {"args": ["--set", "server.headers.authorization=not-a-real-key"]},
        "read the value of server.headers.authorization;",
    ),
    "key in env": ({"env": [{"name": "HF_TOKEN", "value": "not-a-real-key"}]}, "read the value of HF_TOKEN;"),
    "secret that is not a variable": ({"secret": {"values": {"my-key": "x"}}}, "my-key"),
}
pytestmark = pytest.mark.kubernetes


@pytest.fixture(scope="module")
def answer() -> dict[str, Any]:
    return render(VALUES | {"password": PASSWORD} | {name: values for name, (values, _) in REFUSED.items()})


def text_of(answer: dict[str, Any], name: str) -> str:
    """Return all resources of the chart with these values."""
    rendered = answer["rendered"][name]
    assert "error" not in rendered, rendered
    return "\n---\n".join(text for template, text in sorted(rendered.items()) if not template.endswith("NOTES.txt"))


def by_kind(answer: dict[str, Any], name: str) -> dict[str, Resource]:
    return {resource["kind"]: resource for resource in resources(text_of(answer, name))}


def pod_of(answer: dict[str, Any], name: str) -> Resource:
    spec: Resource = by_kind(answer, name)["Job"]["spec"]["template"]["spec"]
    return spec


def args_of(answer: dict[str, Any], name: str) -> list[str]:
    args: list[str] = pod_of(answer, name)["containers"][0]["args"]
    return args


def test_versions() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == inferometer.__version__
    assert chart["kubeVersion"] == f">={VERSIONS[0]}.0-0"
    assert all(version in (ROOT / "docs" / "how-to" / "kubernetes.md").read_text() for version in VERSIONS)


@pytest.mark.parametrize("name", VALUES)
def test_lint(answer: dict[str, Any], name: str) -> None:
    lint = answer["lint"][name]
    assert lint["errors"] == []
    assert [message["error"] for message in lint["messages"]] == ["icon is recommended"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", VALUES)
def test_resources_are_valid(answer: dict[str, Any], tmp_path: Path, name: str, version: str) -> None:
    text = text_of(answer, name)
    assert violations(text, tmp_path, version) == ""
    assert_restricted(pod_of(answer, name))
    assert all(resource["metadata"]["labels"] for resource in resources(text))


@pytest.mark.parametrize("version", VERSIONS)
def test_a_misspelt_field_is_found(answer: dict[str, Any], tmp_path: Path, version: str) -> None:
    text = text_of(answer, "defaults")
    assert "backoffLimits" in violations(text.replace("backoffLimit:", "backoffLimits:"), tmp_path, version)
    assert violations(text.replace("backoffLimit: 0", "backoffLimit: none"), tmp_path, version)


@pytest.mark.parametrize("name", VALUES)
def test_helm_3_renders_the_same(answer: dict[str, Any], tmp_path: Path, name: str) -> None:
    if not (TOOLS / "helm3").exists():
        pytest.skip("Helm 3 is not installed: it needs npm")
    values = tmp_path / "values.json"
    values.write_text(json.dumps(VALUES[name]))
    command = [TOOLS / "helm3", "template", "bench", CHART, "--namespace", "load", "--values", values]
    done = subprocess.run([*command, "--kube-version", VERSIONS[0]], capture_output=True, text=True, check=True)
    ours = text_of(answer, name).replace("bench-3", "bench-1")  # `helm template` is always revision 1
    assert sorted(resources(done.stdout), key=str) == sorted(resources(ours), key=str)


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_values_are_refused(answer: dict[str, Any], name: str) -> None:
    error = answer["rendered"][name].get("error", "")
    assert REFUSED[name][1] in error
    assert "not-a-real-key" not in error


def test_defaults(answer: dict[str, Any]) -> None:
    kinds = by_kind(answer, "defaults")
    assert kinds.keys() == {"ConfigMap", "Job", "PersistentVolumeClaim", "Pod", "ServiceAccount"}
    job = kinds["Job"]
    assert job["metadata"]["name"] == "bench-3"
    assert job["spec"]["backoffLimit"] == 0 and job["spec"]["ttlSecondsAfterFinished"] == 604800
    assert args_of(answer, "defaults") == ["run", "/config/config.yaml"]
    config.from_mapping(yaml.safe_load(kinds["ConfigMap"]["data"]["config.yaml"]))
    assert kinds["Pod"]["metadata"]["annotations"]["helm.sh/hook"] == "test"
    assert_restricted(kinds["Pod"]["spec"])


def test_results_in_a_claim_that_exists(answer: dict[str, Any]) -> None:
    kinds, pod = by_kind(answer, "pvc"), pod_of(answer, "pvc")
    assert "PersistentVolumeClaim" not in kinds and "Secret" not in kinds
    assert {"name": "results", "persistentVolumeClaim": {"claimName": "benchmarks"}} in pod["volumes"]
    assert pod["containers"][0]["envFrom"] == [{"secretRef": {"name": "vllm-key"}}]
    assert args_of(answer, "pvc") == ["capacity", "/config/config.yaml", "--at-least", "20", "--budget", "10m"]
    assert "ttlSecondsAfterFinished" not in kinds["Job"]["spec"]
    assert kinds["Pod"]["spec"]["containers"][0]["args"][2:6] == ["--model", "llama", "--api-key-env", "VLLM_API_KEY"]


def test_results_in_a_bucket(answer: dict[str, Any]) -> None:
    kinds, pod = by_kind(answer, "bucket"), pod_of(answer, "bucket")
    assert args_of(answer, "bucket")[2:] == ["--set", "output=s3://benchmarks/llama"]
    assert kinds["Secret"]["stringData"] == VALUES["bucket"]["secret"]["values"]
    assert pod["containers"][0]["envFrom"] == [{"secretRef": {"name": kinds["Secret"]["metadata"]["name"]}}]
    assert kinds["ServiceAccount"]["metadata"]["annotations"].keys() == {"eks.amazonaws.com/role-arn"}
    assert pod["serviceAccountName"] == kinds["ServiceAccount"]["metadata"]["name"]
    assert kinds["ConfigMap"]["data"]["prompts.jsonl"] == VALUES["bucket"]["files"]["prompts.jsonl"]
    assert kinds_with("not-a-real-key", answer, "bucket") == ["Secret"]


def kinds_with(word: str, answer: dict[str, Any], name: str) -> list[str]:
    return [resource["kind"] for resource in resources(text_of(answer, name)) if word in json.dumps(resource)]


def test_a_config_with_keys_is_a_secret(answer: dict[str, Any]) -> None:
    kinds, pod = by_kind(answer, "key-in-config"), pod_of(answer, "key-in-config")
    assert kinds_with("not-a-real-key", answer, "key-in-config") == ["Secret"]
    assert kinds_with("not-a-real-token", answer, "key-in-config") == ["Secret"]
    assert "ConfigMap" not in kinds
    assert kinds["Secret"]["stringData"].keys() == {"config.yaml"}
    (volume,) = [volume for volume in pod["volumes"] if volume["name"] == "config"]
    assert volume == {"name": "config", "secret": {"secretName": kinds["Secret"]["metadata"]["name"]}}


def test_a_config_with_a_password_in_a_url_is_a_secret(answer: dict[str, Any]) -> None:
    assert kinds_with("not-a-real-key", answer, "password") == ["Secret"]


@pytest.mark.parametrize("name", sorted(VALUES.keys() - {"key-in-config"}))
def test_a_config_without_keys_is_readable(answer: dict[str, Any], name: str) -> None:
    kinds = by_kind(answer, name)
    assert kinds["ConfigMap"]["data"]["config.yaml"]
    assert "secret" not in {key for volume in pod_of(answer, name)["volumes"] for key in volume}


def test_service_monitor(answer: dict[str, Any]) -> None:
    """Custom resources have no schema here, so their structure is compared with the operator's documentation."""
    kinds, pod = by_kind(answer, "servicemonitor"), pod_of(answer, "servicemonitor")
    monitor, service = kinds["ServiceMonitor"], kinds["Service"]
    assert monitor["apiVersion"] == "monitoring.coreos.com/v1"
    assert monitor["spec"].keys() == {"selector", "endpoints"}
    assert monitor["spec"]["endpoints"] == [{"port": "metrics", "path": "/metrics", "interval": "2s"}]
    assert monitor["metadata"]["labels"]["release"] == "kube-prometheus-stack"
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert service["spec"]["ports"] == [{"name": "metrics", "port": 9100, "targetPort": "metrics"}]
    job = kinds["Job"]["spec"]["template"]
    assert service["spec"]["selector"].items() <= job["metadata"]["labels"].items()
    assert not service["spec"]["selector"].items() <= kinds["Pod"]["metadata"]["labels"].items()
    assert pod["containers"][0]["ports"] == [{"name": "metrics", "containerPort": 9100}]
    settings = [value for value in args_of(answer, "servicemonitor") if value.startswith("export.")]
    assert settings == ["export.metrics_port=9100", "export.metrics_host=0.0.0.0"]


def test_inference_perf(answer: dict[str, Any]) -> None:
    assert args_of(answer, "inference-perf") == ["inference-perf", "--config_file", "/config/config.yaml"]
    kinds = by_kind(answer, "inference-perf")
    assert "Pod" not in kinds, "the test is for our own configs"
    assert kinds["ConfigMap"]["data"]["config.yaml"] == VALUES["inference-perf"]["config"]
    assert pod_of(answer, "inference-perf")["serviceAccountName"] == "benchmarks"
