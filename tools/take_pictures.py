"""Takes the pictures of the README, docs/img/live.svg and docs/img/result.svg, from a real run against the simulator."""

import io
import re
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

from inferometer import conduct
from inferometer.config import from_mapping
from inferometer.records import Snapshot
from inferometer.report import console as report
from inferometer.report.live import LiveView
from inferometer.serve.background import running
from inferometer.serve.settings import Settings
from inferometer.serve.sim.settings import Fixed, Sim

IMAGES = Path(__file__).parents[1] / "docs" / "img"
WIDTH = 100


class Camera(LiveView):
    """A live view that is saved as a picture after some seconds instead of being shown."""

    taken = False

    def progress(self, snapshot: Snapshot) -> None:
        super().progress(snapshot)
        if snapshot.elapsed > 40 and not self.taken:
            self.taken = True
            sheet = Console(record=True, width=WIDTH, file=io.StringIO())
            sheet.print(self._render())
            save(sheet, "live", "inferometer run http://127.0.0.1:8000 --rate 40 --duration 1m")


def save(sheet: Console, name: str, title: str) -> None:
    svg = sheet.export_svg(title=title)
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)  # use the reader's fonts instead of loading some
    (IMAGES / f"{name}.svg").write_text(svg, encoding="utf-8")


def main() -> None:
    with (
        running(Settings(sim=Sim(timing=Fixed(ttft=0.2, itl=0.02, jitter=0.1)), http=8000)) as url,
        tempfile.TemporaryDirectory() as folder,
    ):
        load = {"type": "poisson", "rate": 40, "duration": "1m"}
        data = {"input": 128, "output": 64}
        config = from_mapping({"server": {"url": url}, "load": load, "data": data, "output": folder})
        run, summary = conduct.measure(config, Camera(Console(file=io.StringIO())))
        text = report.render(run, summary, color=True).replace(str(run.folder), f"runs/{run.folder.name}")
    sheet = Console(record=True, width=WIDTH, file=io.StringIO())
    sheet.print(Text.from_ansi(text))
    save(sheet, "result", "inferometer report runs/LATEST")


if __name__ == "__main__":
    main()
