// The charts of a report: SVG, drawn from the JSON in #data. Nothing is loaded from the network.
//
// A chart has one of these kinds: `xy` (lines, bands, points), `heat` (a grid of counts), `rows` (a timeline per request) and `forest` (ratios with
// intervals). All zoom by
// dragging and reset by a double click. Charts of one group share the x axis: zoom and cursor move together. Colours are CSS
// variables, so that a change of theme needs no redraw.
(() => {
"use strict";
const root = document.documentElement;
const failed = message => { root.dataset.errors = (root.dataset.errors ? root.dataset.errors + "\n" : "") + message; };
window.addEventListener("error", event => failed(event.message));
window.addEventListener("unhandledrejection", event => failed(String(event.reason)));

const LEFT = 54, RIGHT = 14, COLOURS = 8, NEAR = 6;
const specs = JSON.parse(document.getElementById("data").textContent).charts;
const groups = new Map();
const escape = text => String(text).replace(/[&<>"']/g, letter => `&#${letter.charCodeAt(0)};`);
const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
const known = value => value !== null && value !== undefined && Number.isFinite(value);

// --- numbers and scales ---------------------------------------------------------------------------------------------

const SCALES = {
  linear: { to: v => v, from: v => v },
  log: { to: v => Math.log10(v), from: v => 10 ** v },
  nines: { to: v => -Math.log10(Math.max(1 - v, 1e-6)), from: v => 1 - 10 ** -v },
};

function number(value) {
  if (!known(value)) return "–";
  const size = Math.abs(value);
  const decimals = size === 0 ? 0 : size < 0.1 ? 4 : size < 1 ? 3 : size < 10 ? 2 : size < 100 ? 1 : 0;
  return value.toLocaleString("en-US", { maximumFractionDigits: decimals });
}

function clock(seconds, span) {
  if (span < 180) return number(seconds);
  const total = Math.round(seconds), minutes = Math.floor(total / 60);
  const rest = String(total % 60).padStart(2, "0");
  return minutes < 60 ? `${minutes}:${rest}` : `${Math.floor(minutes / 60)}:${String(minutes % 60).padStart(2, "0")}:${rest}`;
}

function percent(value) {
  const size = Math.abs(value);
  return `${value > 0 ? "+" : "−"}${size.toLocaleString("en-US", { maximumFractionDigits: size < 0.995 ? 2 : size < 9.95 ? 1 : 0 })} %`;
}

const FORMATS = {
  number,
  time: clock,
  change: ratio => Math.abs(ratio - 1) < 1e-9 ? "same" : ratio >= 2.995 ? `${number(ratio)} ×` : percent(100 * (ratio - 1)),
  share: value => known(value) ? `${(100 * value).toLocaleString("en-US", { maximumFractionDigits: value > 0.99 && value < 1 ? 3 : 1 })} %` : "–",
};

function ticks(low, high, scale, room, isTime) {
  const wanted = Math.max(2, Math.floor(room));
  if (scale === "nines") {
    return [0, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999].filter(v => v >= low && v <= high);
  }
  if (scale === "log") {
    const from = Math.floor(Math.log10(low)), to = Math.ceil(Math.log10(high)), found = [];
    const steps = to - from > 1.5 * wanted ? [1] : to - from > wanted / 2.5 ? [1, 3] : [1, 2, 5];
    for (let power = from; power <= to; power++) for (const step of steps) found.push(step * 10 ** power);
    const inside = found.filter(v => v >= low * 0.9999 && v <= high * 1.0001);
    if (inside.length > (high / low > 10 ? 1 : 3)) return inside;
  }
  const rough = (high - low) / wanted || 1;
  const base = 10 ** Math.floor(Math.log10(rough));
  const steps = isTime && rough > 10 ? [15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600].filter(v => v >= rough) : [1, 2, 2.5, 5, 10].map(v => v * base).filter(v => v >= rough * 0.999);
  const step = steps[0] || base * 10, found = [];
  for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + step * 1e-6; at += step) found.push(Math.abs(at) < step * 1e-9 ? 0 : at);
  return found;
}

const axisName = (label, scale) => scale === "log" && !label.includes("logarithmic") ? `${label} (logarithmic)` : label;

function grid(axis) {
  return Array.isArray(axis) ? axis : Array.from({ length: axis.count }, (_, index) => axis.from + index * axis.step);
}

/** The last index whose value is at most `at`, in an ascending array; -1 before the first. */
function indexAt(values, at) {
  let low = 0, high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] <= at) low = middle + 1; else high = middle;
  }
  return low - 1;
}

// --- a chart: its frame, pointer and zoom ---------------------------------------------------------------------------

function makeChart(figure, spec) {
  const painter = { xy: paintLines, heat: paintHeat, rows: paintRows, forest: paintForest }[spec.kind](spec, figure);
  const chart = { figure, spec, zoomed: null, width: 0, draw, cursor, zoom };
  const bar = figure.appendChild(document.createElement("div"));
  bar.className = "legend";
  const holder = figure.appendChild(document.createElement("div"));
  holder.className = "plot";
  const readout = document.createElement("span");
  readout.className = "readout";
  painter.legend?.(bar, () => draw());
  bar.append(readout);
  const reset = document.createElement("button");
  reset.type = "button"; reset.className = "small reset"; reset.textContent = "reset zoom"; reset.hidden = true;
  reset.addEventListener("click", () => zoomAll(null));
  bar.append(reset);
  const members = spec.group ? groups.get(spec.group) ?? groups.set(spec.group, []).get(spec.group) : [];
  members.push(chart);
  const everyone = spec.group ? members : [chart];
  const zoomAll = range => everyone.forEach(each => each.zoom(range));
  let view = null, svg = null, pressed = null;

  function zoom(range) {
    chart.zoomed = range;
    reset.hidden = !range;
    figure.dataset.zoom = range ? range.map(v => v.toPrecision(6)).join(" ") : "";
    if (chart.width) draw();
  }

  function draw() {
    const width = holder.clientWidth;
    if (!width) return;
    chart.width = width;
    const height = painter.height?.(width) ?? spec.height ?? 240;
    const bottom = spec.x.hide ? 6 : 36, top = spec.bandLabels ? 20 : 8;
    const xs = SCALES[spec.x.scale || "linear"];
    let [low, high] = chart.zoomed ?? painter.range();
    if (!(high > low)) [low, high] = xs === SCALES.log ? [low / 2 || 0.1, low * 2 || 1] : [low - 0.5, low + 0.5];
    const [from, to] = [xs.to(low), xs.to(high)];
    const [left, right] = painter.margins?.(width) ?? [LEFT, RIGHT], inner = width - left - right;
    view = {
      width, height, top, bottom, low, high, inner, left, right,
      x: value => left + (xs.to(value) - from) / (to - from) * inner,
      at: pixel => xs.from(from + (pixel - left) / inner * (to - from)),
    };
    const clip = `clip-${figure.dataset.chart}`;
    const parts = [`<clipPath id="${clip}"><rect x="${left}" y="0" width="${inner}" height="${height - bottom + 1}"/></clipPath>`];
    for (const [index, band] of (spec.bands ?? []).entries()) {
      const [a, b] = [clamp(view.x(band.from), left, width - right), clamp(view.x(band.to), left, width - right)];
      if (b - a < 1) continue;
      if (index % 2 === 0) parts.push(`<rect class="stage" x="${a}" y="${top}" width="${b - a}" height="${height - top - bottom}"/>`);
      if (spec.bandLabels && b - a > 40) {
        const letters = Math.floor((b - a) / 6.5);
        const name = band.label.length > letters ? `${band.label.slice(0, Math.max(letters - 1, 1))}…` : band.label;
        parts.push(`<text class="stage-name" x="${(a + b) / 2}" y="12" text-anchor="middle">${escape(name)}</text>`);
      }
    }
    const body = painter.paint(view);
    parts.push(body.axis ?? "");
    const lines = spec.x.ticks?.filter(mark => mark >= low && mark <= high) ?? ticks(low, high, painter.tickScale?.(low, high) ?? spec.x.scale ?? "linear", inner / 60, spec.x.format === "time");
    const marks = spec.x.hide ? [] : lines;
    const format = FORMATS[spec.x.format || "number"];
    let last = -1e9;
    for (const mark of lines) {
      parts.push(`<line class="grid" x1="${view.x(mark)}" x2="${view.x(mark)}" y1="${top}" y2="${height - bottom}"/>`);
    }
    for (const mark of marks) {
      const at = view.x(mark), text = format(mark, high - low), half = Math.max(17, 3.4 * text.length + 2);
      if (at - half < last) continue;
      last = at + half;
      parts.push(`<text class="tick" x="${at}" y="${height - bottom + 14}" text-anchor="middle">${text}</text>`);
    }
    if (!spec.x.hide) parts.push(`<text class="label" x="${left + inner / 2}" y="${height - 5}" text-anchor="middle">${escape(axisName(spec.x.label, spec.x.scale))}</text>`);
    parts.push(`<g clip-path="url(#${clip})">${body.marks}</g>${body.labels ?? ""}`);
    parts.push(`<g class="cursor"></g><rect class="selection" y="${top}" height="${height - top - bottom}" width="0"/>`);
    holder.innerHTML = `<svg width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" role="img" aria-label="${escape(spec.title)}">${parts.join("")}</svg>`;
    svg = holder.firstChild;
    figure.dataset.drawn = "1";
  }

  function cursor(at, pixelY) {
    if (!svg) return;
    const layer = svg.querySelector(".cursor");
    const isInside = at !== null && at >= view.low && at <= view.high;
    const found = isInside ? painter.hover(at, view, pixelY) : painter.hover(null, view);
    layer.innerHTML = isInside ? `<line x1="${view.x(at)}" x2="${view.x(at)}" y1="${view.top}" y2="${view.height - view.bottom}"/>${found?.marks ?? ""}` : "";
    readout.textContent = found?.text ?? "";
    figure.dataset.hover = found?.text ?? "";
  }

  const place = event => {
    const box = svg.getBoundingClientRect();
    return [clamp(event.clientX - box.left, view.left, view.width - view.right), event.clientY - box.top];
  };
  holder.addEventListener("pointerdown", event => {
    if (!svg || event.button) return;
    pressed = place(event)[0];
    try { holder.setPointerCapture(event.pointerId); } catch { /* a pointer that a script made up */ }
  });
  holder.addEventListener("pointermove", event => {
    if (!svg) return;
    const [x, y] = place(event);
    everyone.forEach(each => each.cursor(view.at(x), each === chart ? y : undefined));
    if (pressed === null) return;
    const selection = svg.querySelector(".selection");
    selection.setAttribute("x", Math.min(x, pressed));
    selection.setAttribute("width", Math.abs(x - pressed));
  });
  const release = event => {
    if (pressed === null || !svg) return;
    const [x] = place(event), from = pressed;
    pressed = null;
    svg.querySelector(".selection").setAttribute("width", 0);
    if (event.type === "pointerup" && Math.abs(x - from) > NEAR) zoomAll([view.at(Math.min(x, from)), view.at(Math.max(x, from))]);
  };
  holder.addEventListener("pointerup", release);
  holder.addEventListener("pointercancel", release);
  holder.addEventListener("pointerleave", () => everyone.forEach(each => each.cursor(null)));
  holder.addEventListener("dblclick", () => zoomAll(null));
  const resized = () => { if (holder.clientWidth && holder.clientWidth !== chart.width) draw(); };
  new ResizeObserver(() => requestAnimationFrame(resized)).observe(holder);  // not at once: drawing changes the size again
  draw();
  return chart;
}

// --- lines, bands and points ----------------------------------------------------------------------------------------

function paintLines(spec) {
  const hidden = new Set(), all = spec.series;
  for (const [index, each] of all.entries()) {
    each.x = grid(each.x ?? spec.x.values);
    each.y = grid(each.y ?? spec.y.values.slice(0, each.x.length));
    each.colour = each.colour ?? index % COLOURS;
  }
  /** Class and style of a line's elements; a position on the ramp, or a tone (good, warn, bad), replaces the colour. */
  const tint = each => known(each.ramp) ? "own" : each.tone ?? `c${each.colour}`;
  const look = each => `${tint(each)}${each.dash ? " dashed" : ""}${each.faint ? " faint" : ""}`;
  const own = each => known(each.ramp) ? `--own: color-mix(in oklch decreasing hue, var(--c0), var(--c1) ${100 * each.ramp}%)` : "";
  let yScale = spec.y.scale || "linear";
  const values = [];
  const format = FORMATS[spec.y.format || "number"];
  const usable = (value, scale) => known(value) && (scale !== "log" || value > 0);

  function legend(bar, redraw) {
    for (const [index, each] of all.entries()) {
      const button = bar.appendChild(document.createElement("button"));
      button.type = "button"; button.className = `key ${look(each)}`; button.style.cssText = own(each);
      button.setAttribute("aria-pressed", "true"); button.title = "show or hide";
      const name = button.appendChild(document.createElement("span"));
      name.textContent = each.name;
      values[index] = button.appendChild(document.createElement("b"));
      button.addEventListener("click", () => {
        if (!hidden.delete(index)) hidden.add(index);
        button.setAttribute("aria-pressed", String(!hidden.has(index)));
        redraw();
      });
    }
    if (spec.y.nines) {
      const button = bar.appendChild(document.createElement("button"));
      button.type = "button"; button.className = "small"; button.textContent = "stretch the tail"; button.setAttribute("aria-pressed", "false");
      button.addEventListener("click", () => {
        yScale = yScale === "nines" ? "linear" : "nines";
        button.setAttribute("aria-pressed", String(yScale === "nines"));
        redraw();
      });
    }
  }

  function range() {
    const xs = all.filter((_, index) => !hidden.has(index)).flatMap(each => each.x.concat(...(each.ex ?? []))).filter(v => usable(v, spec.x.scale));
    let low = spec.x.min ?? Math.min(...xs), high = spec.x.max ?? Math.max(...xs);
    for (const line of spec.vlines ?? []) if (line.at < high * 4) high = Math.max(high, line.at * 1.05);
    if (!Number.isFinite(low) || !Number.isFinite(high)) return spec.x.scale === "log" ? [0.1, 1] : [0, 1];
    if (spec.x.pad) high += (high - low) * 0.06;
    return [low, high];
  }

  function extent(view) {
    if (yScale === "nines") return [0, Math.max(...all.filter((_, i) => !hidden.has(i)).map(each => Math.min(each.y.at(-1) ?? 0.9, 0.99999)), 0.9)];
    if (known(spec.y.min) && known(spec.y.max)) return [spec.y.min, spec.y.max];
    let low = Infinity, high = -Infinity;
    for (const [index, each] of all.entries()) {
      if (hidden.has(index)) continue;
      for (let i = 0; i < each.x.length; i++) {
        if (each.x[i] < view.low || each.x[i] > view.high) continue;
        for (const value of [each.y[i], each.lo?.[i], each.hi?.[i]]) {
          if (!usable(value, yScale)) continue;
          low = Math.min(low, value); high = Math.max(high, value);
        }
      }
    }
    for (const line of spec.hlines ?? []) if (line.at < high * 3) { high = Math.max(high, line.at); low = Math.min(low, line.at); }
    if (!Number.isFinite(low)) return yScale === "log" ? [0.1, 1] : [0, 1];
    if (yScale === "log") return [low / 1.15, high * 1.2];
    low = spec.y.min ?? Math.min(0, low);
    return [low, spec.y.max ?? (high > low ? high + (high - low) * 0.08 : low + 1)];
  }

  let y = null;
  function paint(view) {
    const [low, high] = extent(view), scale = SCALES[yScale];
    const [from, to] = [scale.to(low), scale.to(high)], bottom = view.height - view.bottom;
    y = value => bottom - (scale.to(value) - from) / (to - from || 1) * (bottom - view.top);
    const axis = [], marks = [], labels = [];
    let last = 1e9;
    for (const mark of ticks(low, high, yScale, (bottom - view.top) / (view.height < 150 ? 26 : 38))) {
      if (last - y(mark) < 11) continue;
      last = y(mark);
      axis.push(`<line class="grid" x1="${LEFT}" x2="${view.width - RIGHT}" y1="${last}" y2="${last}"/><text class="tick" x="${LEFT - 7}" y="${last + 4}" text-anchor="end">${Math.abs(mark) >= 10_000 ? `${number(mark / 1000)}k` : format(mark)}</text>`);
    }
    axis.push(`<line class="axis" x1="${LEFT}" x2="${view.width - RIGHT}" y1="${bottom}" y2="${bottom}"/>`);
    if (spec.y.label) axis.push(`<text class="label" transform="translate(11 ${(view.top + bottom) / 2}) rotate(-90)" text-anchor="middle">${escape(axisName(spec.y.label, yScale))}</text>`);
    for (const [index, each] of all.entries()) if (!hidden.has(index)) marks.push(paintSeries(each, view));
    for (const line of spec.hlines ?? []) {
      if (line.at < low || line.at > high) continue;
      labels.push(`<line class="limit" x1="${LEFT}" x2="${view.width - RIGHT}" y1="${y(line.at)}" y2="${y(line.at)}"/><text class="limit-name" x="${LEFT + 6}" y="${y(line.at) - 4}">${escape(line.label)}</text>`);
    }
    const names = [];  // from, to and row: a name that would cover another one moves down
    for (const line of spec.vlines ?? []) {
      if (line.at < view.low || line.at > view.high) continue;
      const x = view.x(line.at), wide = 6.2 * line.label.length + 10, isRight = x + wide > view.width, tone = line.tone ?? "";
      const [from, to] = isRight ? [x - wide, x] : [x, x + wide];
      let row = line.row ?? 0;
      while (names.some(([start, end, at]) => at === row && from < end && to > start)) row += 1;
      names.push([from, to, row]);
      const top = view.top + 10 + 14 * row;
      labels.push(`<line class="limit ${tone}" x1="${x}" x2="${x}" y1="${view.top}" y2="${bottom}"/><text class="limit-name ${tone}" x="${x + (isRight ? -5 : 5)}" y="${top}" text-anchor="${isRight ? "end" : "start"}">${escape(line.label)}</text>`);
    }
    labels.push(paintMarks(view, low, high));
    return { axis: axis.join(""), marks: marks.join(""), labels: labels.join("") };
  }

  /** Rings with a name, such as the knee of a line; a name that would cover another one moves up. */
  function paintMarks(view, low, high) {
    const parts = [], taken = [];
    for (const mark of spec.marks ?? []) {
      if (hidden.has(mark.series) || mark.x < view.low || mark.x > view.high || mark.y < low || mark.y > high) continue;
      const x = view.x(mark.x), half = 3.2 * mark.label.length, middle = clamp(x, LEFT + half, view.width - RIGHT - half);
      let top = y(mark.y) - 14;
      while (top > 24 && taken.some(([at, wide, up]) => Math.abs(at - middle) < wide + half && Math.abs(up - top) < 13)) top -= 4;
      taken.push([middle, half, top]);
      parts.push(`<circle class="ring whisker c${mark.colour}" cx="${x}" cy="${y(mark.y)}" r="9"/><text class="mark-name" x="${middle}" y="${top}" text-anchor="middle">${escape(mark.label)}</text>`);
    }
    return parts.join("");
  }

  function paintSeries(each, view) {
    const parts = [], style = look(each);
    const here = i => usable(each.x[i], spec.x.scale) && usable(each.y[i], yScale);
    if (each.lo && !each.points) {
      let edge = "", back = [];
      for (let i = 0; i <= each.x.length; i++) {
        if (i < each.x.length && usable(each.lo[i], yScale) && usable(each.hi[i], yScale)) {
          const x = view.x(each.x[i]);
          edge += `${edge ? "L" : "M"}${x.toFixed(1)} ${y(each.hi[i]).toFixed(1)}`;
          back.push(`L${x.toFixed(1)} ${y(each.lo[i]).toFixed(1)}`);
        } else if (edge) {
          parts.push(`<path class="band ${style}" d="${edge}${back.reverse().join("")}Z"/>`);
          edge = ""; back = [];
        }
      }
    }
    let line = "", previous = null;
    for (let i = 0; i < each.x.length; i++) {
      if (!here(i)) { previous = null; continue; }
      const [x, at] = [view.x(each.x[i]).toFixed(1), y(each.y[i]).toFixed(1)];
      line += previous === null ? `M${x} ${at}h0` : each.step ? `H${x}V${at}` : `L${x} ${at}`;
      previous = at;
    }
    if (!each.scatter) parts.push(`<path class="line ${style}" d="${line}"/>`);
    if (each.points) {
      for (let i = 0; i < each.x.length; i++) {
        if (!here(i)) continue;
        const [x, at] = [view.x(each.x[i]), y(each.y[i])];
        if (known(each.lo?.[i]) && known(each.hi?.[i])) parts.push(`<path class="whisker ${style}" d="M${x} ${y(Math.max(each.lo[i], yScale === "log" ? 1e-9 : -Infinity))}V${y(each.hi[i])}"/>`);
        if (known(each.ex?.[i]?.[0]) && known(each.ex?.[i]?.[1])) parts.push(`<path class="whisker ${style}${each.scatter ? " thick" : ""}" d="M${view.x(each.ex[i][0])} ${at}H${view.x(each.ex[i][1])}"/>`);
        parts.push(`<circle class="dot ${style}${each.hollow?.[i] ? " hollow" : ""}" cx="${x}" cy="${at}" r="4"/>`);
      }
    }
    return known(each.ramp) ? `<g style="${own(each)}">${parts.join("")}</g>` : parts.join("");
  }

  /** The point whose x is nearest: points need not be in the order of x. */
  const nearest = (xs, at) => xs.reduce((best, x, i) => known(x) && (best < 0 || Math.abs(x - at) < Math.abs(xs[best] - at)) ? i : best, -1);

  function hover(at, view, pixel) {
    if (at === null) { values.forEach(each => { if (each) each.textContent = ""; }); return null; }
    const marks = [];
    let text = "", distance = Infinity;
    for (const [index, each] of all.entries()) {
      let i = each.points ? nearest(each.x, at) : indexAt(each.x, at);
      if (!each.points && !each.floor && i + 1 < each.x.length && (i < 0 || each.x[i + 1] - at < at - each.x[i])) i += 1;
      const value = i < 0 ? (each.floor ? 0 : null) : each.y[i];
      if (values[index]) values[index].textContent = hidden.has(index) ? "" : format(value);
      if (hidden.has(index) || !usable(value, yScale) || i < 0) continue;
      const away = Math.abs(y(value) - (pixel ?? y(value)));
      if (each.labels && away < distance) { text = `${each.labels[i]} · `; distance = away; }
      marks.push(`<circle class="dot ${tint(each)}" style="${own(each)}" cx="${view.x(each.floor ? at : each.x[i])}" cy="${y(value)}" r="3.5"/>`);
    }
    const unit = spec.x.unit ?? "";
    return { marks: marks.join(""), text: `${text}${spec.x.short ?? ""} ${FORMATS[spec.x.format || "number"](at, view.high - view.low)} ${unit}`.trim() };
  }
  return { legend, range, paint, hover };
}

// --- a heatmap ------------------------------------------------------------------------------------------------------

function paintHeat(spec) {
  const { columns, rows, counts, from, step, edges } = spec;
  const most = Math.max(...counts, 1);
  const canvas = document.createElement("canvas");
  canvas.width = columns; canvas.height = rows;
  const context = canvas.getContext("2d"), image = context.createImageData(columns, rows);
  for (let i = 0; i < counts.length; i++) {
    const column = Math.floor(i / rows), row = i % rows, at = 4 * ((rows - 1 - row) * columns + column);
    image.data.set([0, 0, 0, counts[i] ? 40 + 215 * Math.log1p(counts[i]) / Math.log1p(most) : 0], at);
  }
  context.putImageData(image, 0, 0);
  const url = canvas.toDataURL();
  let y = null;
  return {
    legend(bar) {
      const key = bar.appendChild(document.createElement("span"));
      key.className = "key shades";
      key.textContent = `1 to ${number(most)} gaps (logarithmic)`;
    },
    range: () => [spec.x.min ?? from, spec.x.max ?? from + columns * step],
    paint(view) {
      const bottom = view.height - view.bottom, [low, high] = [edges[0], edges[rows]];
      y = value => bottom - Math.log(value / low) / Math.log(high / low) * (bottom - view.top);
      const axis = ticks(low, high, "log", (bottom - view.top) / 38).map(mark => `<text class="tick" x="${LEFT - 7}" y="${y(mark) + 4}" text-anchor="end">${number(mark)}</text>`);
      axis.push(`<line class="axis" x1="${LEFT}" x2="${view.width - RIGHT}" y1="${bottom}" y2="${bottom}"/><text class="label" transform="translate(11 ${(view.top + bottom) / 2}) rotate(-90)" text-anchor="middle">${escape(spec.y.label)}</text>`);
      const x = view.x(from), width = view.x(from + columns * step) - x;
      const mask = `heat-${spec.id}`;
      const marks = `<mask id="${mask}" mask-type="alpha"><image href="${url}" x="${x}" y="${view.top}" width="${width}" height="${bottom - view.top}" preserveAspectRatio="none"/></mask><rect class="heat" x="${x}" y="${view.top}" width="${width}" height="${bottom - view.top}" mask="url(#${mask})"/>`;
      const labels = (spec.hlines ?? []).filter(line => line.at > low && line.at < high).map(line => `<line class="limit" x1="${LEFT}" x2="${view.width - RIGHT}" y1="${y(line.at)}" y2="${y(line.at)}"/><text class="limit-name" x="${LEFT + 6}" y="${y(line.at) - 4}">${escape(line.label)}</text>`);
      return { axis: axis.join(""), marks, labels: labels.join("") };
    },
    hover(at, view, pixel) {
      if (at === null) return null;
      const column = Math.floor((at - from) / step), when = `${clock(at, view.high - view.low)} s`;
      if (column < 0 || column >= columns) return { text: when };
      if (pixel === undefined) return { text: `${when} · ${number(counts.slice(column * rows, (column + 1) * rows).reduce((a, b) => a + b, 0))} gaps` };
      const bottom = view.height - view.bottom;
      const row = clamp(Math.floor((bottom - pixel) / (bottom - view.top) * rows), 0, rows - 1);
      return { text: `${when} · ${number(edges[row])} to ${number(edges[row + 1])} ms · ${number(counts[column * rows + row])} gaps` };
    },
  };
}

// --- one timeline per request ---------------------------------------------------------------------------------------

function paintRows(spec) {
  const PITCH = 42, all = spec.rows;
  const top = row => 20 + row * PITCH + 12;
  return {
    height: () => 16 + all.length * PITCH + 40,
    legend(bar) {
      for (const [name, style] of spec.keys) {
        const key = bar.appendChild(document.createElement("span"));
        key.className = `key still ${style}`;
        key.append(document.createElement("span"));
        key.firstChild.textContent = name;
      }
    },
    range: () => [0, Math.max(...all.map(each => each.end)) * 1.01],
    paint(view) {
      const marks = [], labels = [];
      for (const [row, each] of all.entries()) {
        labels.push(`<text class="row-name" x="${LEFT}" y="${top(row) - 5}">${escape(each.label)}</text>`);
        for (const [from, to, style] of each.parts) {
          marks.push(`<rect class="part ${style}" x="${view.x(from)}" y="${top(row)}" width="${Math.max(view.x(to) - view.x(from), 0.5)}" height="16" rx="1"/>`);
        }
        if (each.tokens.length) marks.push(`<path class="tokens" d="${each.tokens.map(at => `M${view.x(at).toFixed(1)} ${top(row)}v16`).join("")}"/>`);
      }
      const bottom = view.height - view.bottom;
      return { axis: `<line class="axis" x1="${LEFT}" x2="${view.width - RIGHT}" y1="${bottom}" y2="${bottom}"/>`, marks: marks.join(""), labels: labels.join("") };
    },
    hover(at, view, pixel) {
      if (at === null) return null;
      const each = all[clamp(Math.floor((pixel - 20) / PITCH), 0, all.length - 1)];
      const i = indexAt(each.tokens, at), when = `${number(at)} ${spec.x.unit}`;
      const part = each.parts.find(([from, to]) => at >= from && at <= to);
      const name = part ? spec.keys.find(([, style]) => style === part[2])?.[0] ?? "" : "";
      if (i < 0 || i + 1 >= each.tokens.length) return { text: `${each.label} · ${when} · ${name}` };
      return { text: `${each.label} · ${when} · after chunk ${each.numbers[i]}: next one ${number((spec.x.unit === "s" ? 1e3 : 1) * (each.tokens[i + 1] - each.tokens[i]))} ms later` };
    },
  };
}

// --- ratios with intervals, a row each ------------------------------------------------------------------------------

function paintForest(spec) {
  const PITCH = 28, TOP = 8, all = spec.rows, rows = all.filter(each => known(each.at));
  const middle = row => TOP + (row + 0.5) * PITCH, longest = Math.max(...all.map(each => each.label?.length ?? 0));
  const cut = (text, room) => text.length * 7 > room ? `${text.slice(0, Math.max(Math.floor(room / 7) - 1, 1))}…` : text;
  const words = each => {
    const [at, low, high] = [each.at, each.lo, each.hi].map(value => known(value) ? FORMATS.change(value) : "");
    return low ? `${at} (${high.endsWith("%") ? low.replace(" %", "") : low} to ${high})` : at;
  };
  return {
    height: () => TOP + all.length * PITCH + 40,
    margins: width => width > 640 ? [clamp(7 * longest + 8, 150, 280), 196] : [clamp(7 * longest + 8, 104, 0.42 * width), 12],
    tickScale: (low, high) => high / low < 8 ? "linear" : "log",
    range() {  // an interval that is many times wider than the largest difference ends in an arrow
      const most = Math.max(3 * Math.max(...rows.map(each => Math.abs(Math.log(each.at))), 0), Math.log(1.12));
      const ends = rows.flatMap(each => [each.at, each.lo, each.hi, each.limit]).filter(known).map(Math.log);
      const low = Math.max(Math.min(...ends, -0.02), -most), high = Math.min(Math.max(...ends, 0.02), most), pad = 0.05 * (high - low);
      return [Math.exp(low - pad), Math.exp(high + pad)];
    },
    paint(view) {
      const marks = [], labels = [], bottom = view.height - view.bottom, zero = view.x(1);
      marks.push(`<line class="one" x1="${zero}" x2="${zero}" y1="${view.top}" y2="${bottom}"/>`);
      for (const [row, each] of all.entries()) {
        const y = middle(row), tone = `${each.tone}-mark`;
        if (each.heading) {
          labels.push(`<text class="stage-name" x="0" y="${y + 8}">${escape(each.heading)}</text>`);
          continue;
        }
        labels.push(`<text class="forest-name" x="0" y="${y + 4}">${escape(cut(each.label, view.left - 4))}</text>`);
        if (!known(each.at)) continue;
        if (view.right > 60) labels.push(`<text class="forest-value ${each.tone}-ink-svg" x="${view.width}" y="${y + 4}" text-anchor="end">${escape(words(each))}</text>`);
        for (const dot of each.dots ?? []) marks.push(`<circle class="pale" cx="${view.x(dot)}" cy="${y}" r="2.6"/>`);
        if (known(each.limit)) marks.push(`<path class="limit" d="M${view.x(each.limit)} ${y - 11}v22"/>`);
        if (known(each.lo) && known(each.hi)) {
          const [from, to] = [Math.max(view.x(each.lo), view.left), Math.min(view.x(each.hi), view.width - view.right)];
          const ends = [from > view.left ? `M${from} ${y - 5}v10` : `M${from + 7} ${y - 5}l-7 5l7 5`, to < view.width - view.right ? `M${to} ${y - 5}v10` : `M${to - 7} ${y - 5}l7 5l-7 5`];
          if (to >= from) marks.push(`<path class="interval ${tone}" d="M${from} ${y}H${to}${ends.join("")}"/>`);
        }
        marks.push(`<circle class="forest-dot ${tone}" cx="${view.x(each.at)}" cy="${y}" r="5"/>`);
      }
      return { axis: `<line class="axis" x1="${view.left}" x2="${view.width - view.right}" y1="${bottom}" y2="${bottom}"/>`, marks: marks.join(""), labels: labels.join("") };
    },
    hover(at, view, pixel) {
      const each = at === null || pixel === undefined ? null : all[Math.floor((pixel - TOP) / PITCH)];
      if (!each || each.heading) return at === null ? null : { text: FORMATS.change(at) };
      return { text: `${each.label}: ${known(each.at) ? words(each) : "not compared"}${each.note ? ` · ${each.note}` : ""}` };
    },
  };
}

// --- tabs, theme, start ---------------------------------------------------------------------------------------------

for (const tabs of document.querySelectorAll(".tabs")) {
  const chosen = [...tabs.querySelectorAll(":scope > .switches > .switch")].map(each => each.querySelector("button"));
  const show = () => {
    const key = chosen.map(button => button.dataset.value).join("|");
    for (const pane of tabs.querySelectorAll(":scope > .pane")) pane.hidden = pane.dataset.key !== key;
    for (const button of tabs.querySelectorAll(":scope > .switches button")) button.setAttribute("aria-pressed", String(chosen.includes(button)));
  };
  for (const [index, part] of [...tabs.querySelectorAll(":scope > .switches > .switch")].entries()) {
    part.addEventListener("click", event => {
      const button = event.target.closest("button");
      if (button) { chosen[index] = button; show(); }
    });
  }
  show();
}

document.getElementById("theme")?.addEventListener("click", () => {
  const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = isDark ? "light" : "dark";
});

// The section that is being read is marked in the list of sections.
const links = new Map([...document.querySelectorAll("nav a")].map(link => [link.hash.slice(1), link]));
const watcher = new IntersectionObserver(entries => {
  for (const entry of entries.filter(each => each.isIntersecting)) {
    for (const [id, link] of links) link.classList.toggle("here", id === entry.target.id);
  }
}, { rootMargin: "-15% 0px -80% 0px" });
for (const section of document.querySelectorAll("main > section")) watcher.observe(section);

for (const figure of document.querySelectorAll("figure[data-chart]")) {
  try {
    makeChart(figure, specs[figure.dataset.chart]);
  } catch (error) {
    failed(`${figure.dataset.chart}: ${error.stack || error}`);
  }
}
root.dataset.ready = "1";
})();
