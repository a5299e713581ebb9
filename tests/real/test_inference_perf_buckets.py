"""inference-perf's report files in buckets of real HTTP object stores, which the tests start."""

import json
from pathlib import Path

from command import cli
from test_object_stores import KEY, SECRET, Store, server, sim, store

from inferometer.store.objects import connect

__all__ = ["server", "sim", "store"]


def test_report_files_go_to_the_bucket(store: Store, sim: str, tmp_path: Path) -> None:
    place = {"bucket_name": "bench", "path": "reports/{timestamp}", "report_file_prefix": "x-"}
    section = "google_cloud_storage"
    if store.scheme == "s3":
        section = "simple_storage_service"
        place |= {"endpoint_url": store.proxy.url, "addressing_style": "path", "region_name": "us-east-1"}
    load = ("--load.stages", '[{"rate": 10, "duration": 1}]', "--load.interval", "0")
    result = cli("inference-perf", "--server.base_url", sim, *load, f"--storage.{section}", json.dumps(place))
    assert result.status == 0, result
    with connect(f"{store.url}/reports") as found:
        names = {name.partition("/")[2] for name in found.names()}
    assert {"x-config.yaml", "x-summary_lifecycle_metrics.json", "x-validation.json"} <= names
    assert KEY not in result.out and SECRET not in result.out
