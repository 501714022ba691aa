"use strict";
// The figure of the report: lines of the methods, which zoom and can be switched off.
(() => {
  const data = JSON.parse(document.getElementById("figure-data").textContent);
  const plot = document.getElementById("plot");
  if (!plot || !data.methods.length) return;
  const WIDTH = 2; // of a line
  const MARKERS = { // by their letters in matplotlib
    o: "M-4 0A4 4 0 1 0 4 0A4 4 0 1 0 -4 0Z", s: "M-3.6-3.6H3.6V3.6H-3.6Z", "^": "M0-4.6L4.4 3.4H-4.4Z",
    D: "M0-5L5 0L0 5L-5 0Z", v: "M-4.4-3.4H4.4L0 4.6Z",
    P: "M-1.7-5H1.7V-1.7H5V1.7H1.7V5H-1.7V1.7H-5V-1.7H-1.7Z",
    X: "M-4.7-2.3L-2.3-4.7L0-2.4L2.3-4.7L4.7-2.3L2.4 0L4.7 2.3L2.3 4.7L0 2.4L-2.3 4.7L-4.7 2.3L-2.4 0Z",
    "*": "M0-6L1.4-1.9L5.7-1.9L2.2 .7L3.5 4.9L0 2.3L-3.5 4.9L-2.2 .7L-5.7-1.9L-1.4-1.9Z",
  };
  const PREFIXES = [[1e18, "E"], [1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
  const hidden = new Set();
  let view = null; // [left, right, bottom, top] after a zoom
  let cursor = null; // x under the pointer
  let frame = null; // scales of the last drawing

  const make = (name, attributes, parent) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (parent) parent.appendChild(node);
    return node;
  };
  const byId = (id) => document.getElementById(id);
  const axis = () => data.axes[byId("axis").selectedIndex];
  const metric = () => data.metrics[byId("metric").selectedIndex];
  const shown = () => data.methods.map((m, i) => ({ ...m, index: i })).filter((m) => !hidden.has(m.index));
  const color = (i) => data.methods[i].style.colour;
  const dash = (i) => data.methods[i].style.line.map((length) => length * WIDTH).join(" ");
  const marker = (i) => MARKERS[data.methods[i].style.marker];

  // The points of a method: {x, y, low, high}, without those that are not finite.
  const points = (method) => {
    const xs = method.columns[axis().name], y = method.columns[metric().name];
    const [lows, highs] = method.bands[metric().name];
    const all = xs.map((x, i) => ({ x, y: y[i], low: lows[i], high: highs[i] }));
    return all.filter((p) => p.x !== null && p.y !== null);
  };

  const hasBand = (p) => typeof p.low === "number" && typeof p.high === "number";

  const prefixOf = (largest, unit) => (unit && PREFIXES.find(([size]) => largest >= size)) || [1, ""];
  const short = (value, digits) => {
    if (value !== 0 && (Math.abs(value) >= 1e7 || Math.abs(value) < 1e-4)) return value.toExponential(2);
    return value.toLocaleString("en", { minimumFractionDigits: 0, maximumFractionDigits: digits });
  };
  const exact = (value, column) => {
    if (column.percent) return `${(100 * value).toFixed(2)}%`;
    const [size, prefix] = prefixOf(Math.abs(value), column.unit);
    const text = String(Number((value / size).toPrecision(5)));
    return column.unit ? `${text} ${prefix}${column.unit}` : text;
  };

  const ticks = (low, high, count, least = 0) => {
    const rough = Math.max((high - low) / Math.max(count, 1), least);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((k) => k * power).find((s) => s >= rough * 0.999);
    const first = Math.ceil(low / step - 1e-9);
    const result = [];
    for (let k = first; k * step <= high + step * 1e-9; k++) result.push(k * step + 0); // no -0
    return { values: result, digits: Math.max(0, -Math.floor(Math.log10(step) + 1e-9)) };
  };

  // The ranges of the lines. Of y, those after the first tenth of each line, where methods differ; in
  // simulated time they differ from the start.
  const ranges = () => {
    const lines = shown().map(points).filter((line) => line.length);
    const all = lines.flat();
    if (!all.length) return [0, 1, 0, 1];
    const start = axis().name === "simulated_seconds" ? 0 : 0.1;
    const late = lines.flatMap((line) => line.slice(Math.floor(line.length * start)));
    const span = (values) => [
      values.reduce((a, b) => Math.min(a, b)), values.reduce((a, b) => Math.max(a, b)),
    ];
    let [left, right] = span(all.map((p) => p.x)), [bottom, top] = span(late.map((p) => p.y));
    if (left === right) [left, right] = [left - 0.5, right + 0.5];
    const margin = 0.08 * (top - bottom) || Math.abs(top) * 0.1 || 0.5;
    return [left, right, bottom - margin, top + margin];
  };

  const draw = () => {
    const width = Math.max(plot.clientWidth, 280), height = Math.min(460, Math.max(280, width * 0.5));
    const focused = document.activeElement && document.activeElement.closest("#plot svg");
    plot.replaceChildren();
    const [left, right, bottom, top] = view || ranges();
    const edge = { left: 62, right: 14, top: 12, bottom: 46 };
    const inner = { width: width - edge.left - edge.right, height: height - edge.top - edge.bottom };
    const x = (value) => edge.left + ((value - left) / (right - left)) * inner.width;
    const y = (value) => edge.top + (1 - (value - bottom) / (top - bottom)) * inner.height;
    frame = { left, right, bottom, top, edge, inner, width, height };
    const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, tabindex: 0, role: "img" }, plot);
    const names = shown().map((m) => m.label).join(", ") || "no method";
    svg.setAttribute("aria-label", `${metric().label} against ${axis().label}: ${names}. The arrow keys move the cursor.`);
    const clip = make("clipPath", { id: "inside" }, make("defs", {}, svg));
    make("rect", { x: edge.left, y: edge.top, width: inner.width, height: inner.height }, clip);
    const [size, prefix] = prefixOf(Math.max(Math.abs(left), Math.abs(right)), axis().unit);
    const [high, letter] = prefixOf(Math.max(Math.abs(bottom), Math.abs(top)), metric().unit);
    const scale = metric().percent ? 0.01 : high;
    const text = (content, attributes) => { make("text", attributes, svg).textContent = content; };
    const least = axis().name === "round" ? 1 : 0; // there is no half round
    const across = ticks(left / size, right / size, inner.width / 90, least);
    for (const value of across.values) {
      const at = x(value * size);
      make("line", { x1: at, x2: at, y1: edge.top, y2: edge.top + inner.height, stroke: "#ddd" }, svg);
      text(short(value, across.digits), { x: at, y: height - edge.bottom + 18, "text-anchor": "middle" });
    }
    const up = ticks(bottom / scale, top / scale, inner.height / 55);
    for (const value of up.values) {
      const at = y(value * scale);
      make("line", { x1: edge.left, x2: edge.left + inner.width, y1: at, y2: at, stroke: "#ddd" }, svg);
      text(short(value, up.digits), { x: edge.left - 8, y: at + 4, "text-anchor": "end" });
    }
    const unit = (column, sign) => (column.unit ? `, ${sign}${column.unit}` : "");
    text(axis().label + unit(axis(), prefix), { x: edge.left + inner.width / 2, y: height - 6, "text-anchor": "middle" });
    text(metric().label + (metric().percent ? ", %" : unit(metric(), letter)), {
      x: 0, y: 0, "text-anchor": "middle", transform: `translate(14 ${edge.top + inner.height / 2}) rotate(-90)`,
    });
    make("rect", { x: edge.left, y: edge.top, width: inner.width, height: inner.height, fill: "none", stroke: "#555" }, svg);
    const lines = make("g", { "clip-path": "url(#inside)" }, svg);
    for (const method of shown()) drawLine(method, lines, x, y);
    const rule = make("line", { y1: edge.top, y2: edge.top + inner.height, stroke: "#333", "stroke-dasharray": "4 3" }, svg);
    const drag = make("rect", { fill: "#0b5fa5", "fill-opacity": 0.12, stroke: "#0b5fa5", visibility: "hidden" }, svg);
    frame = { ...frame, svg, x, rule, drag };
    listen(svg);
    if (focused) svg.focus();
    showValues();
  };

  const drawLine = (method, parent, x, y) => {
    const line = points(method);
    if (!line.length) return;
    const i = method.index;
    const path = (values) => values.map(([a, b]) => `${a.toFixed(2)} ${b.toFixed(2)}`).join("L");
    const banded = line.filter(hasBand);
    if (byId("bands").checked && banded.length > 1) {
      const above = banded.map((p) => [x(p.x), y(p.high)]);
      const below = banded.map((p) => [x(p.x), y(p.low)]).reverse();
      make("path", { d: `M${path([...above, ...below])}Z`, fill: color(i), "fill-opacity": 0.13 }, parent);
    }
    const stroke = { stroke: color(i), "stroke-width": WIDTH, fill: "none" };
    make("path", { ...stroke, d: `M${path(line.map((p) => [x(p.x), y(p.y)]))}`, "stroke-dasharray": dash(i) }, parent);
    let next = line.length > 8 ? x(line[0].x) + 9 * (i % 4) : -Infinity; // so that markers stand apart
    line.forEach((p) => {
      const at = x(p.x);
      if (at < next) return;
      next = at + 36;
      make("path", { d: marker(i), transform: `translate(${at.toFixed(2)} ${y(p.y).toFixed(2)})`,
        fill: color(i) }, parent);
    });
  };

  const nearest = (line, at) => line.reduce((a, b) => (Math.abs(b.x - at) < Math.abs(a.x - at) ? b : a));

  const showValues = () => {
    const inside = cursor !== null && cursor >= frame.left && cursor <= frame.right;
    frame.rule.setAttribute("visibility", inside ? "visible" : "hidden");
    if (inside) for (const end of ["x1", "x2"]) frame.rule.setAttribute(end, frame.x(cursor));
    byId("value-heading").textContent = inside ? `${metric().label} at the cursor` : `last ${metric().label}`;
    byId("place-heading").textContent = axis().label;
    data.methods.forEach((method, i) => {
      const line = points(method);
      const point = line.length ? (inside ? nearest(line, cursor) : line[line.length - 1]) : null;
      const ends = point && hasBand(point) ? ` (${exact(point.low, metric())} to ${exact(point.high, metric())})` : "";
      byId(`value-${i}`).textContent = point ? exact(point.y, metric()) + ends : "-";
      byId(`place-${i}`).textContent = point ? exact(point.x, axis()) : "-";
    });
  };

  const zoom = (factor) => {
    const { left, right, bottom, top } = frame;
    const middle = cursor !== null && cursor > left && cursor < right ? cursor : (left + right) / 2;
    const height = ((top - bottom) * factor) / 2, center = (bottom + top) / 2;
    view = [middle - (middle - left) * factor, middle + (right - middle) * factor, center - height, center + height];
    draw();
  };

  const listen = (svg) => {
    let start = null;
    const place = (event) => {
      const box = svg.getBoundingClientRect(), ratio = frame.width / box.width;
      const clamp = (v, low, size) => Math.min(Math.max(v, low), low + size);
      return [
        clamp((event.clientX - box.left) * ratio, frame.edge.left, frame.inner.width),
        clamp((event.clientY - box.top) * ratio, frame.edge.top, frame.inner.height),
      ];
    };
    const valueX = (px) => frame.left + ((px - frame.edge.left) / frame.inner.width) * (frame.right - frame.left);
    const valueY = (py) => frame.top - ((py - frame.edge.top) / frame.inner.height) * (frame.top - frame.bottom);
    svg.addEventListener("pointerdown", (event) => {
      if (event.pointerType === "mouse" && event.button === 0) {
        start = place(event);
        svg.setPointerCapture(event.pointerId);
      }
    });
    svg.addEventListener("pointermove", (event) => {
      const [px, py] = place(event);
      cursor = valueX(px);
      if (start) {
        const box = { x: Math.min(px, start[0]), y: Math.min(py, start[1]), width: Math.abs(px - start[0]), height: Math.abs(py - start[1]), visibility: "visible" };
        for (const [key, value] of Object.entries(box)) frame.drag.setAttribute(key, value);
      }
      showValues();
    });
    svg.addEventListener("pointerup", (event) => {
      if (!start) return;
      const [px, py] = place(event), [sx, sy] = start;
      start = null;
      frame.drag.setAttribute("visibility", "hidden");
      if (Math.abs(px - sx) < 6 || Math.abs(py - sy) < 6) return;
      view = [valueX(Math.min(px, sx)), valueX(Math.max(px, sx)), valueY(Math.max(py, sy)), valueY(Math.min(py, sy))];
      draw();
    });
    svg.addEventListener("pointerleave", () => { if (!start) { cursor = null; showValues(); } });
    svg.addEventListener("dblclick", reset);
    svg.addEventListener("keydown", (event) => {
      const xs = [...new Set(shown().flatMap(points).map((p) => p.x))].filter((v) => v >= frame.left && v <= frame.right);
      xs.sort((a, b) => a - b);
      const forward = event.key === "ArrowRight";
      if (!xs.length || !(forward || event.key === "ArrowLeft")) return;
      event.preventDefault();
      const beyond = forward ? xs.find((v) => cursor === null || v > cursor) : xs.findLast((v) => cursor === null || v < cursor);
      cursor = beyond === undefined ? (forward ? xs[xs.length - 1] : xs[0]) : beyond;
      showValues();
    });
  };

  const reset = () => { view = cursor = null; draw(); };

  data.methods.forEach((method, i) => {
    const box = byId(`show-${i}`);
    const sample = make("svg", { width: 44, height: 14, "aria-hidden": "true" });
    make("path", { d: "M1 7H43", stroke: color(i), "stroke-width": WIDTH, "stroke-dasharray": dash(i) }, sample);
    make("path", { d: marker(i), transform: "translate(22 7)", fill: color(i) }, sample);
    box.after(sample);
    box.addEventListener("change", () => {
      if (box.checked) hidden.delete(i); else hidden.add(i);
      draw();
    });
  });
  for (const id of ["axis", "metric"]) byId(id).addEventListener("change", reset);
  byId("bands").addEventListener("change", draw);
  byId("closer").addEventListener("click", () => zoom(0.6));
  byId("wider").addEventListener("click", () => zoom(1 / 0.6));
  byId("whole").addEventListener("click", reset);
  byId("figure-parts").hidden = false;
  let seen = plot.clientWidth;
  window.addEventListener("resize", () => { if (plot.clientWidth !== seen) { seen = plot.clientWidth; draw(); } });
  draw();
})();
