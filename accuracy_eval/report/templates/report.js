"use strict";
(() => {
  const $ = (id) => document.getElementById(id);
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const wear = (theme) => { root.dataset.theme = theme; };
  wear(dark.matches ? "dark" : "light");
  dark.addEventListener("change", (event) => wear(event.matches ? "dark" : "light"));
  $("theme").addEventListener("click", () => wear(root.dataset.theme === "dark" ? "light" : "dark"));

  // ---- elements: text is always set as text, never parsed ----

  const SVG = "http://www.w3.org/2000/svg";
  const fill = (node, attributes, children) => {
    for (const [name, value] of Object.entries(attributes || {})) if (value !== null && value !== undefined) node.setAttribute(name, value);
    for (const child of [children].flat()) if (child !== undefined && child !== null) node.append(child);
    return node;
  };
  const h = (name, attributes, children) => fill(document.createElement(name), attributes, children);
  const s = (name, attributes, children) => fill(document.createElementNS(SVG, name), attributes, children);

  // ---- numbers ----

  const number = (value) => (typeof value === "string" ? { NaN: NaN, Inf: Infinity, "-Inf": -Infinity }[value] : value);
  const short = (value) => {
    if (!Number.isFinite(value)) return Number.isNaN(value) ? "NaN" : value > 0 ? "Inf" : "-Inf";
    if (value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e5)) return value.toExponential(1).replace("e+", "e").replace(".0e", "e");
    return String(Number(value.toPrecision(3)));
  };
  const decades = (low, high) => {
    const step = Math.max(1, Math.ceil((high - low) / 7)), ticks = [];
    for (let e = Math.ceil(low); e <= high + 1e-9; e += step) ticks.push(e);
    return ticks;
  };

  // ---- drawing ----

  const frame = (width, height, label) => s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  const figure = (svg, caption) => h("figure", {}, [svg, h("figcaption", {}, caption)]);
  const colour = (i) => `var(--s${i % 6})`;
  const title = (text) => s("title", {}, text);

  /** An axis with ticks at `at` (in data units), `place` maps a datum to a pixel. */
  const axisX = (svg, y, at, place, text, from, to) => {
    svg.append(s("line", { class: "axis", x1: from, x2: to, y1: y, y2: y }));
    for (const tick of at) {
      svg.append(s("line", { class: "axis", x1: place(tick), x2: place(tick), y1: y, y2: y + 4 }));
      svg.append(s("text", { x: place(tick), y: y + 16, "text-anchor": "middle", class: "quiet" }, text(tick)));
    }
  };
  const axisY = (svg, x, at, place, text, right) => {
    for (const tick of at) {
      svg.append(s("line", { class: "axis", x1: x, x2: right, y1: place(tick), y2: place(tick) }));
      svg.append(s("text", { x: x - 6, y: place(tick) + 4, "text-anchor": "end", class: "quiet" }, text(tick)));
    }
  };
  const power = (e) => (e === 0 ? "1" : e >= -3 && e <= 4 ? String(Number((10 ** e).toPrecision(1))) : `1e${e}`);

  // bins and the empty ones between them: a gap of the axis is as wide as it is
  const contiguous = (found) => {
    const counts = new Map(found), edges = found.map(([edge]) => edge);
    const powers = edges.filter((e) => e > 0 && Number.isFinite(e)).map(Math.log2).map(Math.round);
    for (let p = Math.min(...powers); p < Math.max(...powers); p++) if (!counts.has(2 ** p)) counts.set(2 ** p, 0);
    return [...counts].sort(([a], [b]) => a - b);
  };
  const histogram = (sketch) => {
    const bins = contiguous(sketch.histogram.map(([edge, count]) => [number(edge), count]));
    const total = bins.reduce((sum, [, count]) => sum + count, 0);
    const bar = Math.max(bins.length > 40 ? 8 : 14, Math.min(34, 380 / bins.length)), left = 46, top = 12, height = 130;
    const width = Math.max(250, left + bins.length * bar + 12);
    const svg = frame(width, height + top + 36, `Histogram of errors in ulp, ${sketch.title}`);
    const most = Math.log10(Math.max(...bins.map(([, count]) => count)));
    const y = (e) => top + height - ((e + 0.3) / (most + 0.3)) * height;
    axisY(svg, left, decades(0, most), y, power, width - 8);
    const step = Math.ceil(46 / bar);
    bins.forEach(([edge, count], i) => {
      const x = left + 4 + i * bar, at = y(Math.log10(count));
      const from = i === 0 ? 0 : bins[i - 1][0];
      const range = edge === 0 ? "exact" : `(${short(Math.max(from, edge / 2))}, ${short(edge)}] ulp`;
      if (count) svg.append(s("rect", { class: "bar", x, y: at, width: bar - 3, height: top + height - at }, title(`${range}: ${count} of ${total}`)));
      if (i % step === 0) svg.append(s("text", { x: x + (bar - 3) / 2, y: top + height + 15, "text-anchor": "middle", class: "quiet" }, short(edge)));
    });
    svg.append(s("text", { x: left, y: top + height + 31, class: "quiet" }, "|error| in ulp, up to"));
    const last = bins[bins.length - 1];
    return figure(svg, `ulp histogram, ${sketch.title}: ${total} element${total === 1 ? "" : "s"}, largest bin edge ${short(last[0])} ulp (${last[1]} there)`);
  };

  // from little to much error: light to dark red, readable on both grounds
  const RAMP = ["#fff5d6", "#fee391", "#fec44f", "#fe9929", "#ec7014", "#cc4c02", "#993404", "#5b1a06"];
  const heat = (sketch) => {
    const cells = sketch.map.map((row) => row.map(number)), rows = cells.length, columns = cells[0].length;
    const logs = cells.flat().filter((v) => v > 0 && Number.isFinite(v)).map(Math.log10);
    const low = Math.min(...logs), high = Math.max(...logs);
    const w = Math.max(6, Math.min(26, Math.floor(330 / columns))), t = Math.max(6, Math.min(26, Math.floor(330 / rows)));
    const left = 44, top = 18, width = Math.max(300, left + columns * w + 10), foot = top + rows * t;
    const open = cells.flat().some((v) => !Number.isFinite(v));
    const svg = frame(width, foot + (open ? 58 : 40), `Error map, ${sketch.title}`);
    const [height, breadth] = sketch.shape, [tall, wide] = sketch.cell;
    const place = (i, j) => {
      const span = (what, n, size, end) => {
        const last = Math.min((n + 1) * size, end) - 1;
        return last === n * size ? `${what} ${last}` : `${what}s ${n * size}–${last}`;
      };
      return height === 1 ? span("element", j, wide, breadth) : `${span("row", i, tall, height)}, ${span("column", j, wide, breadth)}`;
    };
    let worst = [0, 0, -1];
    cells.forEach((row, i) => row.forEach((value, j) => {
      if (value > worst[2]) worst = [i, j, value];
      const shade = logs.length === 0 || high === low ? RAMP.length - 3 : Math.round(((Math.log10(value) - low) / (high - low)) * (RAMP.length - 1));
      const kind = value === 0 ? { class: "nothing" } : Number.isFinite(value) ? { fill: RAMP[shade] } : { class: "infinite" };
      svg.append(s("rect", { x: left + j * w, y: top + i * t, width: w - 0.5, height: t - 0.5, ...kind }, title(`${place(i, j)}: ${short(value)}`)));
    }));
    svg.append(s("rect", { class: "frame", x: left - 0.5, y: top - 0.5, width: columns * w, height: rows * t }));
    svg.append(s("text", { x: left, y: top - 5, class: "quiet" }, height === 1 ? "element 0" : "column 0"));
    svg.append(s("text", { x: left + columns * w, y: top - 5, "text-anchor": "end", class: "quiet" }, columns * w > 110 ? String(breadth - 1) : ""));
    if (height > 1) svg.append(s("text", { x: left - 5, y: top + 10, "text-anchor": "end", class: "quiet" }, "0"));
    if (height > 1 && rows * t > 24) svg.append(s("text", { x: left - 5, y: foot, "text-anchor": "end", class: "quiet" }, String(height - 1)));
    if (logs.length) {
      const single = high === low, shades = single ? [RAMP[RAMP.length - 3]] : RAMP;
      shades.forEach((fillColour, i) => svg.append(s("rect", { x: left + i * 16, y: foot + 12, width: 16, height: 9, fill: fillColour })));
      svg.append(s("text", { x: left, y: foot + 34, class: "quiet" }, short(10 ** low)));
      if (!single) svg.append(s("text", { x: left + RAMP.length * 16, y: foot + 34, "text-anchor": "end", class: "quiet" }, short(10 ** high)));
    }
    if (open) {
      svg.append(s("rect", { class: "infinite", x: left + 0.5, y: foot + 42, width: 12, height: 9 }));
      svg.append(s("text", { x: left + 20, y: foot + 51, class: "quiet" }, "not finite, or 0 was expected"));
    }
    return figure(svg, `error map, ${sketch.title}: error relative to what was expected, cells of ${tall} × ${wide}; largest ${short(worst[2])} at ${place(worst[0], worst[1])}`);
  };

  const byInput = (sketch) => {
    const bins = sketch.inputs.map((bin) => bin.map(number));
    const bar = Math.max(5, Math.min(26, 560 / bins.length)), left = 46, top = 12, height = 140, width = Math.max(300, left + bins.length * bar + 10);
    const svg = frame(width, top + height + 40, `Largest error by input, ${sketch.title}`);
    const usable = bins.flatMap((b) => [b[2], b[3]]).filter((v) => v > 0 && Number.isFinite(v)).map(Math.log10);
    const low = Math.min(-1, Math.floor(Math.min(...usable, 0))), high = Math.max(1, Math.ceil(Math.max(...usable, 0)));
    const y = (e) => top + height - ((Math.max(e, low) - low) / (high - low)) * height;
    axisY(svg, left, decades(low, high), y, power, width - 8);
    let limits = "";
    let worst = bins[0];
    bins.forEach((bin, i) => {
      const [from, to, ulp, limit] = bin, x = left + 2 + i * bar, over = ulp > limit;
      if (ulp / limit > worst[2] / worst[3]) worst = bin;
      const at = y(Math.log10(ulp));
      svg.append(s("rect", { class: "bar", style: over ? "fill:var(--limit)" : null, x, y: at, width: bar - 1, height: Math.max(top + height - at, 0.5) }, title(`inputs [${short(from)}, ${short(to)}): ${short(ulp)} ulp, limit ${short(limit)}`)));
      limits += `${i ? "L" : "M"}${x},${y(Math.log10(limit))}H${x + bar}`;
    });
    svg.append(s("path", { class: "limit", d: limits }));
    const step = Math.ceil(bins.length / 8);
    bins.forEach(([from], i) => {
      if (i % step === 0) svg.append(s("text", { x: left + 2 + i * bar, y: top + height + 15, class: "quiet" }, short(from)));
    });
    svg.append(s("text", { x: left, y: top + height + 32, class: "quiet" }, "input, by octave; ulp of the output; dashed: limit"));
    return figure(svg, `largest error by input, ${sketch.title}: nearest its limit for inputs [${short(worst[0])}, ${short(worst[1])}): ${short(worst[2])} of ${short(worst[3])} ulp`);
  };

  /** Names and colours of those who made the points drawn. */
  const legend = (labels, points) => h("span", {}, labels.map((label, i) => (points.some((p) => p[1] === i) || undefined) && h("span", { style: "margin-right:1em;white-space:nowrap" }, [h("span", { class: "key", style: `background:${colour(i)}` }), label])));

  /** Points [x, y, dump, line, note] on logarithmic axes; y = 1 is the limit where `limit` is set. */
  const scatter = (points, labels, options) => {
    const left = 56, top = 12, width = options.width || 560, height = 240, right = width - 12;
    const svg = frame(width, top + height + 40, options.label);
    const xs = points.map((p) => Math.log2(p[0])), ys = points.map((p) => Math.log10(p[1]));
    const [x0, x1] = [Math.min(...xs), Math.max(...xs)], [y0, y1] = [Math.min(...ys, options.limit ? -1 : Infinity), Math.max(...ys, options.limit ? 0.3 : -Infinity)];
    const x = (v) => left + 16 + ((v - x0) / (x1 - x0 || 1)) * (right - left - 32);
    const y = (v) => top + height - 8 - ((v - y0) / (y1 - y0 || 1)) * (height - 16);
    axisY(svg, left, decades(y0, y1), y, power, right);
    const ticks = [...new Set(points.map((p) => p[0]))].sort((a, b) => a - b);
    const some = ticks.filter((_, i) => i % Math.ceil(ticks.length / 9) === 0).map(Math.log2);
    axisX(svg, top + height, some, x, (e) => String(Math.round(2 ** e)), left, right);
    if (options.limit) svg.append(s("line", { class: "limit", x1: left, x2: right, y1: y(0), y2: y(0) }));
    if (options.join) labels.forEach((_, i) => {
      const own = points.filter((p) => p[2] === i).sort((a, b) => a[0] - b[0]);
      if (own.length > 1) svg.append(s("polyline", { fill: "none", stroke: colour(i), "stroke-width": 1.2, points: own.map((p) => `${x(Math.log2(p[0]))},${y(Math.log10(p[1]))}`).join(" ") }));
    });
    points.forEach((p) => svg.append(s("circle", { cx: x(Math.log2(p[0])) + (p[2] - (labels.length - 1) / 2) * 4, cy: y(Math.log10(p[1])), r: 3, fill: colour(p[2]), "fill-opacity": 0.75, "data-line": p[3] }, title(p[4]))));
    svg.append(s("text", { x: right, y: top + height + 32, "text-anchor": "end", class: "quiet" }, "k"));
    return svg;
  };

  /** Share of the limit by group, one strip each. */
  const strips = (points, labels) => {
    const groups = [...new Set(points.map((p) => p[0]))].sort();
    const left = 200, pitch = 15, top = 22, width = 640, height = groups.length * pitch, right = width - 12;
    const svg = frame(width, top + height + 26, "Error as a share of its limit, by op and format");
    const logs = points.map((p) => Math.log10(p[1]));
    const low = Math.max(-4, Math.min(-1, Math.floor(Math.min(...logs)))), high = Math.max(1, Math.ceil(Math.max(...logs)));
    const x = (e) => left + 6 + ((Math.max(e, low) - low) / (high - low)) * (right - left - 12);
    axisX(svg, top + height, decades(low, high), x, power, left, right);
    svg.append(s("line", { class: "limit", x1: x(0), x2: x(0), y1: top - 6, y2: top + height }));
    svg.append(s("text", { x: x(0), y: top - 9, "text-anchor": "middle" }, "limit"));
    groups.forEach((group, i) => {
      svg.append(s("line", { class: "axis", x1: left, x2: right, y1: top + (i + 0.5) * pitch, y2: top + (i + 0.5) * pitch }));
      svg.append(s("text", { x: left - 8, y: top + (i + 0.5) * pitch + 4, "text-anchor": "end" }, group.length > 32 ? `${group.slice(0, 31)}…` : group));
    });
    const rank = new Map(groups.map((group, i) => [group, i]));
    points.forEach(([group, share, dump, line, note]) => {
      const cy = top + (rank.get(group) + 0.5) * pitch + (dump - (labels.length - 1) / 2) * 4;
      svg.append(s("circle", { cx: x(Math.log10(share)), cy, r: 2.6, fill: colour(dump), "fill-opacity": 0.75, "data-line": line }, title(note)));
    });
    return svg;
  };

  // ---- the table ----

  const table = $("table"), body = table.tBodies[0], all = [...body.rows];
  const text = new Map(all.map((row) => [row, row.textContent.toLowerCase()]));
  const closeDetail = (row) => {
    const next = row.nextElementSibling;
    if (next && next.classList.contains("detail")) next.remove();
    row.querySelector(".open").setAttribute("aria-expanded", "false");
  };
  const filters = [...document.querySelectorAll("#filters select")];
  const apply = () => {
    const words = $("text").value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of all) {
      const kept = filters.every((f) => !f.value || row.dataset[f.dataset.fact] === f.value) && words.every((word) => text.get(row).includes(word));
      if (!kept) closeDetail(row);
      row.hidden = !kept;
      shown += kept;
    }
    $("shown").value = shown === all.length ? `${all.length} results` : `${shown} of ${all.length} results`;
  };
  let waiting = 0;
  $("filters").addEventListener("input", () => { cancelAnimationFrame(waiting); waiting = requestAnimationFrame(apply); });
  $("filters").addEventListener("reset", () => setTimeout(apply));
  $("filters").addEventListener("submit", (event) => event.preventDefault());

  const collator = new Intl.Collator("en", { numeric: true });
  const COLUMN = { case: 1, tensor: 2, who: 3, cause: 5 };
  table.tHead.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    const heading = button.parentElement, now = heading.getAttribute("aria-sort");
    const first = button.dataset.first || "ascending", other = first === "ascending" ? "descending" : "ascending";
    const order = now === first ? other : first, sign = order === "ascending" ? 1 : -1, key = button.dataset.key;
    for (const th of table.tHead.rows[0].cells) th.setAttribute("aria-sort", th === heading ? order : "none");
    const value = key in COLUMN ? (row) => row.cells[COLUMN[key]].textContent : (row) => (row.dataset[key] === undefined ? -1 : Number(row.dataset[key]));
    const compare = key in COLUMN ? collator.compare : (a, b) => a - b;
    const keyed = all.map((row, i) => [value(row), i, row]).sort((a, b) => sign * compare(a[0], b[0]) || a[1] - b[1]);
    for (const row of all) closeDetail(row);
    body.append(...keyed.map((k) => k[2]));
  });

  // ---- what opens below a row ----

  let lines = null;
  const unpack = async () => {
    if (!("DecompressionStream" in globalThis)) throw new Error("this browser cannot unpack the cases; any of 2023 or later can");
    const packed = Uint8Array.from(atob($("details").textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    return (await new Response(stream).text()).split("\n");
  };
  const detailOf = async (i) => {
    lines = lines || unpack();
    return JSON.parse((await lines)[i]);
  };
  const data = JSON.parse($("points").textContent);
  const commandLine = (value) => h("p", { class: "command" }, [h("code", {}, value), h("button", { type: "button", class: "copy", "aria-label": "Copy the command" }, "copy")]);
  const tableOf = (caption, heads, rows, numeric) => h("div", { class: "scroll" }, h("table", { class: caption.toLowerCase().replace(" ", "-") }, [
    h("thead", {}, h("tr", {}, heads.map((head) => h("th", { scope: "col" }, head)))),
    h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell, i) => h(i ? "td" : "th", { class: i >= numeric ? "number" : null, scope: i ? null : "row" }, cell))))),
  ]));

  const partsOf = (i, d) => {
    const parts = [h("pre", {}, d.text)];
    for (const step of d.steps) parts.push(step.startsWith("accuracy-eval ") ? commandLine(step) : h("p", {}, `next: ${step}`));
    if (d.workbook) parts.push(h("p", {}, ["workbook: ", h("a", { href: encodeURIComponent(d.workbook) }, d.workbook)]));
    const pictures = [];
    for (const sketch of d.sketches || []) {
      if (sketch.map.length) pictures.push(heat(sketch));
      if (sketch.inputs.length) pictures.push(byInput(sketch));
      if (sketch.histogram.length > 1 || number(sketch.histogram[0][0]) > 0) pictures.push(histogram(sketch));
      else if (!sketch.map.length) parts.push(h("p", { class: "quiet" }, `${sketch.title}: all ${sketch.histogram[0][1]} finite elements are exact`));
    }
    const own = data.points.find((p) => p[0] === i && p[6] !== null);
    const series = own ? data.points.filter((p) => p[6] === own[6] && p[3] > 0) : [];
    if (new Set(series.map((p) => p[2])).size > 1) {
      const points = series.map((p) => [p[2], p[3], p[1], p[0], `${data.labels[p[1]]}, k = ${p[2]}: ${short(p[3])} of its limit`]);
      pictures.push(h("figure", {}, [scatter(points, data.labels, { limit: true, join: true, width: 420, label: "Error against k of this case" }), h("figcaption", {}, ["share of its limit against k, this case with other k. ", legend(data.labels, series)])]));
    }
    if (pictures.length) parts.push(h("div", { class: "figures" }, pictures));
    if (d.gates && d.gates.length) parts.push(h("h4", {}, "Gates"), tableOf("Gates", ["what", "gate", "metric", "value", "", "limit", "", "limit from"], d.gates, 99));
    if (d.worst && d.worst.length) {
      const [heads, ...elements] = d.worst;
      parts.push(h("h4", {}, "Largest errors"), h("p", { class: "quiet" }, "error: actual − expected. First the element that broke its limit, then the others by size of error."), tableOf("Largest errors", heads, elements, 1));
    }
    if (d.metrics) {
      const heads = ["metric", "unit", ...d.columns.map(([name, verdict]) => `${name}: ${verdict}`)];
      parts.push(h("details", {}, [h("summary", {}, `Metrics (${d.metrics.length})`), tableOf("Metrics", heads, d.metrics, 2)]));
    }
    return parts;
  };
  const show = async (row) => {
    const open = row.querySelector(".open");
    if (open.getAttribute("aria-expanded") === "true") return;
    open.setAttribute("aria-expanded", "true");
    const i = Number(row.id.slice(1)), cell = h("td", { colspan: row.cells.length });
    row.after(h("tr", { class: "detail" }, cell));
    try {
      cell.append(...partsOf(i, await detailOf(i)));
    } catch (error) {
      cell.append(h("p", {}, error.message));
    }
  };
  body.addEventListener("click", (event) => {
    const button = event.target.closest(".open");
    if (!button) return;
    const row = button.closest("tr");
    if (button.getAttribute("aria-expanded") === "true") closeDetail(row);
    else show(row);
  });

  const go = async (i) => {
    const row = $(`t${i}`);
    if (!row) return;
    if (row.hidden) { $("filters").reset(); apply(); }
    await show(row);
    for (const old of document.querySelectorAll("tr.target")) old.classList.remove("target");
    row.classList.add("target");
    row.scrollIntoView({ block: "start" });
    row.querySelector(".open").focus({ preventScroll: true });
  };
  const fromAddress = () => { if (/^#t\d+$/.test(location.hash)) go(Number(location.hash.slice(2))); };
  addEventListener("hashchange", fromAddress);

  document.addEventListener("click", (event) => {
    const point = event.target.closest("circle[data-line]");
    if (point) { location.hash = `t${point.dataset.line}`; return; }
    const again = event.target.closest('a[href^="#t"]');
    if (again && again.hash === location.hash) fromAddress();
    const copy = event.target.closest(".copy");
    if (!copy) return;
    const code = copy.previousElementSibling;
    const done = () => { copy.textContent = "copied"; setTimeout(() => { copy.textContent = "copy"; }, 1500); };
    const byHand = () => { getSelection().selectAllChildren(code); done(); };
    if (navigator.clipboard) navigator.clipboard.writeText(code.textContent).then(done, byHand);
    else byHand();
  });

  // ---- platforms ----

  const only = $("only-differences");
  const hideSame = () => $("platform-table").classList.toggle("only-differences", only.checked);
  only.addEventListener("change", hideSame);
  hideSame();

  // ---- charts over all results; drawn when they come into view, at the latest when the page has nothing else to do ----

  const CEILING = 1e6; // shares beyond are drawn at it, so that one Inf does not flatten the rest
  const overview = () => {
    const node = $("overview");
    const positive = data.points.filter((p) => p[3] > 0);
    const names = [];
    for (const row of all) names[Number(row.id.slice(1))] = row.cells[1].textContent;
    const note = (p) => `${data.labels[p[1]]}, ${names[p[0]]}: ${short(p[3])} of its limit`;
    if (!positive.length) { node.append(h("p", { class: "quiet" }, "No result has an error above 0 against a limit.")); return; }
    const most = 4000, step = Math.ceil(positive.length / most);
    const some = positive.filter((p, i) => i % step === 0 || p[3] > 0.7);
    const shown = (p) => Math.min(p[3], CEILING);
    const beyond = some.some((p) => p[3] > CEILING) ? ` What is beyond ${short(CEILING)} × its limit is drawn there.` : "";
    const said = some.length < positive.length ? ` ${some.length} of ${positive.length} points are drawn, all near or beyond the limit among them.` : "";
    node.append(h("figure", {}, [strips(some.map((p) => [p[5], shown(p), p[1], p[0], note(p)]), data.labels), h("figcaption", {}, ["largest error of each tensor as a share of its limit; a click opens the case. ", legend(data.labels, some), said, beyond])]));
    const withK = some.filter((p) => p[2] > 0 && number(p[4]) > 0 && Number.isFinite(number(p[4])));
    if (new Set(withK.map((p) => p[2])).size > 1) {
      node.append(h("figure", {}, [scatter(withK.map((p) => [p[2], number(p[4]), p[1], p[0], note(p)]), data.labels, { label: "Relative error against k" }), h("figcaption", {}, ["relative error (norm) against the number of products per element. ", legend(data.labels, withK)])]));
      node.append(h("figure", {}, [scatter(withK.map((p) => [p[2], shown(p), p[1], p[0], note(p)]), data.labels, { limit: true, label: "Share of the limit against k" }), h("figcaption", {}, ["largest error as a share of its limit, against k; dashed: limit. ", legend(data.labels, withK), beyond])]));
    }
  };
  const draw = () => { if (!$("overview").firstChild) overview(); };
  const watcher = new IntersectionObserver((entries) => {
    if (entries.some((entry) => entry.isIntersecting)) { watcher.disconnect(); draw(); }
  }, { rootMargin: "600px" });
  watcher.observe($("charts"));
  addEventListener("beforeprint", draw);
  if (globalThis.requestIdleCallback) requestIdleCallback(draw, { timeout: 1000 });  // a busy machine is never idle
  else setTimeout(draw);
  root.className = "";
  fromAddress();
})();
