"""The container image: its definition, and one benchmark inside it."""

import os
import subprocess
from pathlib import Path

import pytest
from kubernetes_tools import ROOT, TOOLS

DOCKERFILE = ROOT / "deploy" / "Dockerfile"


@pytest.mark.kubernetes
def test_the_linter_has_no_remarks() -> None:
    done = subprocess.run([TOOLS / "bin" / "hadolint", DOCKERFILE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_every_file_that_is_copied_is_sent_to_the_builder() -> None:
    lines = DOCKERFILE.read_text().splitlines()
    copied = [
        name for line in lines if line.startswith("COPY ") and "--from" not in line for name in line.split()[1:-1]
    ]
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert set(copied) == sent
    assert all((ROOT / name).exists() for name in sent)


def test_the_guide_names_the_extras() -> None:
    (extras,) = [
        line.partition("=")[2] for line in DOCKERFILE.read_text().splitlines() if line.startswith("ARG EXTRAS=")
    ]
    assert f"| `{extras}` |" in (ROOT / "docs" / "how-to" / "kubernetes.md").read_text()


@pytest.mark.slow
@pytest.mark.image
def test_a_benchmark_in_the_image(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("making the base image needs root")
    done = subprocess.run(
        [ROOT / "deploy" / "check_image.sh", tmp_path / "results"],
        capture_output=True,
        text=True,
        check=False,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "100 requests" in done.stdout.splitlines()[-1]
