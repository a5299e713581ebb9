"""The reference server with models that do what those of triton_models do, with the same names and configurations.

A test file with the line

    pytest_plugins = ["serve_server"]

has the fixture `ours`, created once per session. Its models are the functions of serve_models, with the configurations and
labels of triton_models, so both servers get the same ones. (`sequence` is missing: our server has no sequence batcher.
PYTEST_DONT_REWRITE: test files import more from here before pytest does.)
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from inferometer.serve.background import Running, serving
from inferometer.serve.settings import Settings

HERE = Path(__file__).parent
NAMES = sorted(path.stem for path in (HERE / "serve_models").glob("*.py"))


def repository(folder: Path, *names: str) -> Path:
    """Write a repository of these models (default: all of them) to `folder`."""
    for name in names or NAMES:
        model, theirs = folder / name, HERE / "triton_models" / name
        (model / "1").mkdir(parents=True)
        for path in theirs.iterdir():
            if path.is_file():
                shutil.copy(path, model)
        shutil.copy(HERE / "serve_models" / f"{name}.py", model / "1/model.py")
    return folder


def settings(folder: Path, **options: object) -> Settings:
    return Settings(models=(str(folder),), http=0, grpc=0, metrics=0, **options)  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(settings(repository(tmp_path_factory.mktemp("models")))) as server:
        yield server
