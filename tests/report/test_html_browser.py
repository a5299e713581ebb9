"""The HTML report in a real browser without a network: no error, and charts that respond to hover, zoom and toggles.

The page is opened once as it is. A copy of it also gets a script that drives the charts by pointer events and writes what happened
into the page, which Chromium then prints. So nothing but Chromium is needed.
"""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import html_runs
import html_sweeps
import made_campaign
import made_capacity
import pytest
from several_runs import FASTER, compared, measured, pairs, side

from inferometer.analysis.engine_results import summarise_campaign
from inferometer.report.html import capacity_page, compare_page, engines_page, runs_page

pytestmark = pytest.mark.chromium

FLAGS = (
    *(
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
    ),
    *(
        "--disable-component-update",
        "--disable-sync",
        "--host-resolver-rules=MAP * ~NOTFOUND",
        "--proxy-server=127.0.0.1:9",
    ),
    *("--enable-logging=stderr", "--v=0", "--window-size=1280,900", "--virtual-time-budget=5000", "--dump-dom"),
)
DRIVER = """
const wait = () => new Promise(resolve => setTimeout(resolve, 100));
const all = [...document.querySelectorAll("figure[data-chart]")];
const shown = () => all.filter(each => each.querySelector(".plot").clientWidth);
const send = (figure, type, share, down = 0.5) => {
  const plot = figure.querySelector(".plot"), box = plot.getBoundingClientRect();
  const at = { clientX: box.left + 54 + share * (box.width - 68), clientY: box.top + down * box.height, bubbles: true, pointerId: 1 };
  plot.dispatchEvent(type === "dblclick" ? new MouseEvent(type, at) : new PointerEvent(type, at));
};
const drag = figure => { send(figure, "pointerdown", 0.25); send(figure, "pointermove", 0.5); send(figure, "pointerup", 0.75); };
(async () => {
  const found = { charts: all.length, drawn: shown().filter(each => each.dataset.drawn).length, shown: shown().length };
  found.hover = shown().map(each => { send(each, "pointermove", 0.4); return each.dataset.hover; });
  const specs = JSON.parse(document.getElementById("data").textContent).charts;
  const time = all.filter(each => specs[each.dataset.chart].group === "time");
  send(time[0], "pointermove", 0.4);
  found.linked = time.map(each => each.querySelectorAll(".cursor line").length);
  found.values = [...time[0].querySelectorAll(".key b")].map(each => each.textContent);
  drag(time[0]);
  found.zoomed = time.map(each => each.dataset.zoom);
  send(time[1], "dblclick", 0.5);
  found.reset = time.map(each => each.dataset.zoom);
  const single = all.find(each => !time.includes(each) && shown().includes(each));
  drag(single);
  found.alone = [single.dataset.zoom !== "", time[0].dataset.zoom];
  const lines = () => time[0].querySelectorAll("path.line").length;
  const before = lines();
  time[0].querySelector("button.key").click();
  found.toggled = [before, lines()];
  const tabs = document.querySelector(".tabs"), button = tabs.querySelectorAll(".switch button")[1];
  button.click();
  await wait();
  const pane = [...tabs.querySelectorAll(".pane")].filter(each => !each.hidden);
  found.pane = [pane.length, pane[0].dataset.key, pane[0].querySelector("figure").dataset.drawn];
  const colour = () => getComputedStyle(document.body).backgroundColor;
  const light = colour();
  document.getElementById("theme").click();
  found.theme = light !== colour();
  found.overflow = document.documentElement.scrollWidth > document.documentElement.clientWidth;
  found.title = document.title;
  found.width = window.innerWidth;
  document.body.append(Object.assign(document.createElement("pre"), { id: "driven", textContent: JSON.stringify(found) }));
})();
"""

FOREST_DRIVER = """
const all = [...document.querySelectorAll("figure[data-chart]")], shown = all.filter(each => each.querySelector(".plot").clientWidth);
const specs = JSON.parse(document.getElementById("data").textContent).charts;
const forest = all.find(each => specs[each.dataset.chart].kind === "forest"), plot = forest.querySelector(".plot");
const send = (type, share, down) => {
  const box = plot.getBoundingClientRect();
  plot.dispatchEvent(new PointerEvent(type, { clientX: box.left + share * box.width, clientY: box.top + down, bubbles: true, pointerId: 1 }));
};
const found = { shown: shown.length, drawn: shown.filter(each => each.dataset.drawn).length, width: window.innerWidth };
found.names = [...forest.querySelectorAll(".forest-name")].map(each => each.textContent);
found.marks = forest.querySelectorAll(".forest-dot").length;
send("pointermove", 0.5, 8 + 28 * 1.5);
found.hover = forest.dataset.hover;
send("pointerdown", 0.4, 50); send("pointermove", 0.5, 50); send("pointerup", 0.6, 50);
found.zoom = forest.dataset.zoom;
found.overflow = document.documentElement.scrollWidth > document.documentElement.clientWidth;
document.body.append(Object.assign(document.createElement("pre"), { id: "driven", textContent: JSON.stringify(found) }));
"""


def opened(source: bytes, folder: Path, *flags: str) -> tuple[str, str]:
    """The page after its scripts have run, and what Chromium logged."""
    path = folder / "page.html"
    path.write_bytes(source)
    command = ["chromium", *FLAGS, *flags, f"--user-data-dir={folder / 'profile'}", path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=True)
    return done.stdout, done.stderr


def driven(source: bytes, folder: Path, *flags: str, driver: str = DRIVER) -> dict[str, Any]:
    """What the driver found."""
    text = re.sub(r"script-src '[^']+'", "script-src 'unsafe-inline'", source.decode(), count=1)
    text = text.replace("</body>", f"<script>{driver}</script></body>")
    page, log = opened(text.encode(), folder, *flags)
    assert "CONSOLE" not in log and "data-errors" not in page
    result = re.search(r'<pre id="driven">(.*?)</pre>', page, re.DOTALL)
    assert result, log
    found: dict[str, Any] = json.loads(result[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
    return found


@pytest.mark.parametrize("name", ["plain", "staged", "tensors", "empty"])
def test_the_page_opens_without_an_error(name: str, tmp_path: Path) -> None:
    run = html_runs.staged(html_runs.HOSTILE) if name == "staged" else getattr(html_runs, name)()
    page, log = opened(html_runs.encoded(run), tmp_path)
    assert 'data-ready="1"' in page and "data-errors" not in page and "CONSOLE" not in log
    assert "<title>owned</title>" not in page


def test_charts_respond_to_hover_zoom_and_toggles(tmp_path: Path) -> None:
    found = driven(html_runs.encoded(html_runs.staged(html_runs.HOSTILE)), tmp_path)
    assert found["drawn"] == found["shown"] > 8 and all(found["hover"])
    assert len(found["linked"]) > 5 and set(found["linked"]) == {1}
    assert all(float(value.replace(",", "")) > 0 for value in found["values"])
    zoom = found["zoomed"]
    assert len(set(zoom)) == 1 and 0 < float(zoom[0].split()[0]) < float(zoom[0].split()[1])
    assert set(found["reset"]) == {""} and found["alone"] == [True, ""]
    assert found["toggled"] == [2, 1] and found["pane"] == [1, "itl|all", "1"]
    assert found["theme"] and found["title"] != "owned"


SWEEP_DRIVER = """
const found = {}, all = [...document.querySelectorAll("figure[data-chart]")].filter(each => each.querySelector(".plot").clientWidth);
const send = (figure, type, share, down = 0.5) => {
  const plot = figure.querySelector(".plot"), box = plot.getBoundingClientRect();
  const at = { clientX: box.left + 54 + share * (box.width - 68), clientY: box.top + down * box.height, bubbles: true, pointerId: 1 };
  plot.dispatchEvent(new PointerEvent(type, at));
};
found.drawn = all.filter(each => each.dataset.drawn).length === all.length;
const curve = document.querySelector("#curve figure");
found.rings = [...curve.querySelectorAll(".ring")].length;
found.knee = curve.querySelector(".mark-name").textContent;
send(curve, "pointermove", 0.9, 0.05);
found.top = curve.dataset.hover;
send(curve, "pointermove", 0.9, 0.85);
found.bottom = curve.dataset.hover;
curve.querySelector("button.key").click();
found.hidden = [...curve.querySelectorAll(".ring")].length;
send(curve, "pointerdown", 0.25); send(curve, "pointermove", 0.5); send(curve, "pointerup", 0.75);
found.zoomed = curve.dataset.zoom !== "";
const buttons = [...document.querySelectorAll("#curve .switch button")];
buttons.find(each => each.textContent === "p50").click();
found.pane = [...document.querySelectorAll("#curve .pane")].filter(each => !each.hidden).map(each => each.dataset.key);
found.shades = new Set([...document.querySelectorAll("#grid .pane:not([hidden]) td.shade")].map(each => getComputedStyle(each).backgroundColor)).size;
found.overflow = document.documentElement.scrollWidth > document.documentElement.clientWidth;
document.body.append(Object.assign(document.createElement("pre"), { id: "driven", textContent: JSON.stringify(found) }));
"""


@pytest.mark.parametrize("flags", [(), ("--window-size=390,844",)], ids=["laptop", "phone"])
def test_the_charts_of_a_sweep_respond(flags: tuple[str, ...], tmp_path: Path) -> None:
    found = driven(html_sweeps.encoded(html_sweeps.grid()), tmp_path, *flags, driver=SWEEP_DRIVER)
    assert found["drawn"] and found["rings"] == 1 and found["knee"] == "knee 60/s" and found["hidden"] == 0
    assert found["top"].startswith("input 512") and found["bottom"].startswith("input 64")
    assert found["zoomed"] and found["pane"] == ["ttft|p50|requests"] and found["shades"] > 3
    assert not found["overflow"]


@pytest.mark.parametrize("name", ["single", "tensors", "empty"])
def test_the_page_of_a_sweep_opens_without_an_error(name: str, tmp_path: Path) -> None:
    page, log = opened(html_sweeps.encoded(getattr(html_sweeps, name)()), tmp_path)
    assert 'data-ready="1"' in page and "data-errors" not in page and "CONSOLE" not in log


def test_the_page_fits_a_phone(tmp_path: Path) -> None:
    found = driven(html_runs.encoded(html_runs.staged()), tmp_path, "--window-size=390,844")
    assert found["width"] < 520 and found["drawn"] == found["shown"] and not found["overflow"]


CAPACITY_DRIVER = """
const figures = [...document.querySelectorAll("figure[data-chart]")].filter(each => each.querySelector(".plot").clientWidth);
const hover = figures.map(each => {
  const plot = each.querySelector(".plot"), box = plot.getBoundingClientRect();
  plot.dispatchEvent(new PointerEvent("pointermove", { clientX: box.left + 0.6 * box.width, clientY: box.top + 50, bubbles: true, pointerId: 1 }));
  return each.dataset.hover;
});
const found = { drawn: figures.map(each => each.dataset.drawn), hover, overflow: document.documentElement.scrollWidth > document.documentElement.clientWidth };
document.body.append(Object.assign(document.createElement("pre"), { id: "driven", textContent: JSON.stringify(found) }));
"""


@pytest.mark.parametrize("size", ["1280,900", "390,844"])
@pytest.mark.parametrize("name", ["text", "tensors", "estimated", "too_slow"])
def test_the_page_of_a_capacity_search_opens_and_responds(name: str, size: str, tmp_path: Path) -> None:
    source = capacity_page.encode(getattr(made_capacity, name)(), made_capacity.MANIFEST)
    found = driven(source, tmp_path, f"--window-size={size}", driver=CAPACITY_DRIVER)
    has_levels = name in ("text", "tensors")
    assert len(found["drawn"]) == (4 if has_levels else 3) and set(found["drawn"]) == {"1"} and not found["overflow"]
    assert all("probe " in text for text in found["hover"]) and "requests in flight" in found["hover"][2]


def test_a_comparison_opens_and_its_ratios_respond(tmp_path: Path) -> None:
    found = driven(compare_page.encode([pairs("e2e.p50 worse by 5%")]), tmp_path, driver=FOREST_DRIVER)
    assert found["drawn"] == found["shown"] > 2 and not found["overflow"]
    assert found["names"][:2] == ["TTFT p50", "TTFT p99"] and found["marks"] == len(found["names"])
    assert found["hover"].startswith("TTFT p50: −10 % (")
    low, high = map(float, found["zoom"].split())
    assert 0.5 < low < high < 1.2


ENGINES_DRIVER = """
const found = {}, all = [...document.querySelectorAll("figure[data-chart]")];
const shown = () => all.filter(each => each.querySelector(".plot").clientWidth);
const send = (figure, share, down) => {
  const plot = figure.querySelector(".plot"), box = plot.getBoundingClientRect();
  plot.dispatchEvent(new PointerEvent("pointermove", { clientX: box.left + share * box.width, clientY: box.top + down, bubbles: true, pointerId: 1 }));
};
found.drawn = shown().every(each => each.dataset.drawn);
found.charts = shown().length;
const throughput = document.querySelector("#throughput figure"), startup = document.querySelector("#startup figure");
send(throughput, 0.95, 20);
found.hover = throughput.dataset.hover;
if (startup) { send(startup, 0.3, 40); found.phase = startup.dataset.hover; }
[...document.querySelectorAll("#throughput .switch button")].at(-1).click();
found.pane = [...document.querySelectorAll("#throughput .pane")].filter(each => !each.hidden).map(each => each.dataset.key);
found.overflow = document.documentElement.scrollWidth > document.documentElement.clientWidth;
document.body.append(Object.assign(document.createElement("pre"), { id: "driven", textContent: JSON.stringify(found) }));
"""


@pytest.mark.parametrize("size", ["1280,900", "390,844"])
def test_a_comparison_of_engines_opens_and_responds(size: str, tmp_path: Path) -> None:
    source = engines_page.encode(made_campaign.generators().results())
    found = driven(source, tmp_path, f"--window-size={size}", driver=ENGINES_DRIVER)
    assert found["drawn"] and found["charts"] == 5 and not found["overflow"]
    assert found["hover"].startswith("vllm, 16 in flight") and found["phase"].startswith("vllm, cold: 43.4 s")
    assert found["pane"] == ["scaling"]


LOOK = """
const shown = [...document.querySelectorAll("figure[data-chart]")].filter(each => each.querySelector(".plot").clientWidth);
const boxes = (figure, what) => [...figure.querySelectorAll(what)].map(each => each.getBoundingClientRect());
const found = { labels: [], legends: [...document.querySelectorAll(".key")].map(each => each.textContent), touching: [], through: [], few: [], cut: [] };
for (const figure of shown) {
  found.labels.push(...[...figure.querySelectorAll("text.label")].map(each => each.textContent));
  const title = figure.querySelector("b").textContent, ticks = boxes(figure, "text.tick[text-anchor=middle]");
  if (ticks.some((each, index) => index && each.left < ticks[index - 1].right)) found.touching.push(title);
  const axes = [ticks, boxes(figure, "text.tick[text-anchor=end]")].slice(0, figure.querySelector("svg").clientHeight > 150 ? 2 : 1);
  if (axes.some(each => each.length === 1 || each.length === 2)) found.few.push(title);
  const line = Math.min(...boxes(figure, ".one").map(each => each.left));
  if (boxes(figure, ".forest-name").some(each => each.right > line)) found.through.push(title);
}
for (const each of document.querySelectorAll(".scroll")) if (each.scrollWidth > each.clientWidth) found.cut.push(each.closest("section").id);
document.body.append(Object.assign(document.createElement("pre"), { id: "driven", textContent: JSON.stringify(found) }));
"""


def long_pages() -> dict[str, bytes]:
    """Pages with long names, many settings, and axes that are logarithmic."""
    maker = made_campaign.Maker(1)
    facts = {f"setting number {number}": f"a value {number}" for number in range(12)}
    for name, slower in (("transformers continuous bfloat16", 1.4), ("inferometer bfloat16", 1.0)):
        maker.measured(name, slower, levels=(1, 4, 16), facts=facts | {"dtype": name})
    slow = [measured("a/0"), measured("b/1", seed=1, stages=True)]
    return {
        "engines": engines_page.encode(maker.results()),
        "runs": runs_page.encode(slow),
        "compare": compare_page.encode([compared(side("a", 1.0), side("b", 1.8))]),
        "run": html_runs.encoded(html_runs.plain()),
        "sweep": html_sweeps.encoded(html_sweeps.grid()),
    }


@pytest.mark.parametrize("size", ["1280,900", "390,844"])
@pytest.mark.parametrize("name", ["engines", "runs", "compare", "run", "sweep"])
def test_nothing_is_cut_or_in_the_way_and_axes_say_that_they_are_logarithmic(
    name: str, size: str, tmp_path: Path
) -> None:
    source = long_pages()[name]
    found = driven(source, tmp_path, f"--window-size={size}", driver=LOOK)
    assert found["touching"] == [] and found["through"] == []
    is_phone = size.startswith("390")  # where tables are scrolled, and axes have little room
    assert is_phone or found["cut"] == found["few"] == []
    assert name != "engines" or "requests in flight (logarithmic)" in found["labels"]
    assert name != "run" or any("gaps (logarithmic)" in legend for legend in found["legends"])


def test_a_comparison_of_encoders_opens_without_an_error(tmp_path: Path) -> None:
    page, log = opened(engines_page.encode(summarise_campaign(made_campaign.encoders(), {})), tmp_path)
    assert 'data-ready="1"' in page and "data-errors" not in page and "CONSOLE" not in log


def test_pages_of_several_sides_and_runs_open_without_an_error(tmp_path: Path) -> None:
    a = side("a", 1.0, 1.0, stages=True)
    several = [compared(a, side(name, *scales, stages=True)) for name, scales in (("b", FASTER[:2]), ("c", (1.2, 1.3)))]
    runs = [measured("a/0"), measured("a/1", seed=1), measured(f"b/{html_runs.HOSTILE}")]
    for number, source in enumerate((compare_page.encode(several), runs_page.encode(runs), runs_page.encode(runs[:2]))):
        folder = tmp_path / str(number)
        folder.mkdir()
        page, log = opened(source, folder)
        assert 'data-ready="1"' in page and "data-errors" not in page and "CONSOLE" not in log
        assert "<title>owned</title>" not in page


def test_a_comparison_fits_a_phone(tmp_path: Path) -> None:
    found = driven(compare_page.encode([pairs()]), tmp_path, "--window-size=390,844", driver=FOREST_DRIVER)
    assert found["width"] < 520 and found["drawn"] == found["shown"] and not found["overflow"]
