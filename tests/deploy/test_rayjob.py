"""The RayJob of KubeRay: a custom resource, for which there is no schema here, so that its structure is checked by hand."""

import shlex
from itertools import pairwise
from typing import Any

import yaml
from kubernetes_tools import ROOT, assert_restricted, resources

import inferometer
from inferometer import config

TEXT = (ROOT / "deploy" / "kubernetes" / "rayjob" / "rayjob.yaml").read_text(encoding="utf-8")
CONFIG, JOB = resources(TEXT)

# The fields of ray.io/v1 that the manifest uses, with the types that KubeRay's resource definition gives them.
JOB_FIELDS = {"entrypoint": str, "backoffLimit": int, "shutdownAfterJobFinishes": bool, "ttlSecondsAfterFinished": int, "rayClusterSpec": dict}  # fmt: skip
CLUSTER_FIELDS = {"rayVersion": str, "headGroupSpec": dict, "workerGroupSpecs": list}
HEAD_FIELDS = {"rayStartParams": dict, "template": dict}
WORKER_FIELDS = HEAD_FIELDS | {"groupName": str, "replicas": int, "minReplicas": int, "maxReplicas": int}


def has_fields(tree: dict[str, Any], fields: dict[str, type]) -> None:
    assert tree.keys() == fields.keys()
    assert {name: type(value) for name, value in tree.items()} == fields


def test_the_job_has_the_structure_of_ray_io_v1() -> None:
    assert (JOB["apiVersion"], JOB["kind"]) == ("ray.io/v1", "RayJob")
    has_fields(JOB["spec"], JOB_FIELDS)
    cluster = JOB["spec"]["rayClusterSpec"]
    has_fields(cluster, CLUSTER_FIELDS)
    has_fields(cluster["headGroupSpec"], HEAD_FIELDS)
    (workers,) = cluster["workerGroupSpecs"]
    has_fields(workers, WORKER_FIELDS)
    assert workers["minReplicas"] == workers["replicas"] == workers["maxReplicas"], "the fleet does not change in a run"
    for group in (cluster["headGroupSpec"], workers):
        assert all(isinstance(value, str) for value in group["rayStartParams"].values()), "parameters are strings"


def test_head_and_workers_are_restricted_pods_with_the_same_image_and_config() -> None:
    cluster = JOB["spec"]["rayClusterSpec"]
    pods = [group["template"]["spec"] for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])]
    for pod in pods:
        assert_restricted(pod)
        (container,) = pod["containers"]
        assert container["image"] == f"inferometer-ray:{inferometer.__version__}"
        assert container["resources"]["requests"] == container["resources"]["limits"]
        assert {"name": "config", "configMap": {"name": CONFIG["metadata"]["name"]}} in pod["volumes"]


def test_the_entrypoint_runs_the_config_on_the_cluster() -> None:
    words = shlex.split(JOB["spec"]["entrypoint"])
    assert words[:2] == ["inferometer", "run"]
    assert words[2] == "/config/config.yaml" and "config.yaml" in CONFIG["data"]
    assert ("--fleet", "ray") in pairwise(words)
    config.from_mapping(yaml.safe_load(CONFIG["data"]["config.yaml"]))
