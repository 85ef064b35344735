"use strict";
// Draws what stands in #data below the verdict. Texts of a run are untrusted: they reach the page as text nodes only, never as
// markup, an address, a style, an id or a class, and names of theirs are keys of Maps, never of objects.
(() => {
  const page = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const runs = page.runs || [];
  let current = 0; // the run whose votes, rollouts and skills are shown

  // ---- Elements and texts

  function h(tag, props, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(props || {})) {
      if (value === undefined || value === null || value === false) continue;
      if (name === "class") made.className = value;
      else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else if (name in made && !name.startsWith("aria")) made[name] = value;
      else made.setAttribute(name, value);
    }
    made.append(...children.flat(Infinity).filter((each) => each !== null && each !== undefined && each !== false && each !== ""));
    return made;
  }

  // Characters that act and do not show, each replaced by one that shows: offsets into a text stay what they are.
  const ACTS = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g;
  const shown = (text) =>
    String(text ?? "").replace(ACTS, (c) => (c < " " ? String.fromCharCode(0x2400 + c.charCodeAt(0)) : "\ufffd"));
  const clip = (text, most) => {
    const line = shown(String(text ?? "").slice(0, most + 1));
    return line.length > most ? line.slice(0, most - 1) + "…" : line;
  };
  const one = (text, most) => clip(String(text ?? "").slice(0, 4 * most).replace(/\s+/g, " ").trim(), most) || "(blank)";
  // Names of tasks often differ at their ends.
  const ends = (text, most) => {
    const line = one(text, 1000);
    return line.length > most ? `${line.slice(0, Math.floor(most / 3))}…${line.slice(1 - most + Math.floor(most / 3))}` : line;
  };
  const plural = (n, word) => `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;

  function num(value) {
    if (value === null || value === undefined || !Number.isFinite(value)) return "–";
    const size = Math.abs(value);
    if (Number.isInteger(value) && size < 1e7) return value.toLocaleString("en");
    if (size >= 1e6 || size < 1e-4) return Number(value.toPrecision(3)).toExponential();
    return String(Number(value.toPrecision(size >= 1 ? 4 : 3)));
  }

  const LONG = 2500;
  // A text in full where it is short; the start of a long one, with a button for the rest. `spans`: what to mark.
  function block(text, spans) {
    text = String(text ?? "");
    const box = h("pre");
    const fill = (end) => {
      box.replaceChildren();
      let at = 0;
      for (const [from, to] of spans || []) {
        if (!(from >= at && to > from && from < end)) continue;
        box.append(shown(text.slice(at, from)), h("mark", { title: "a skill, inserted here" }, shown(text.slice(from, Math.min(to, end)))));
        at = Math.min(to, end);
      }
      box.append(shown(text.slice(at, end)));
    };
    if (text.length <= LONG * 1.2) {
      fill(text.length);
      return box;
    }
    fill(LONG);
    const more = h("button", { class: "plain", type: "button", onclick: () => { fill(text.length); more.remove(); } },
      `show all ${text.length.toLocaleString("en")} characters`);
    return h("div", {}, box, more);
  }

  const empty = (why) => h("p", { class: "empty" }, why);
  const note = (text) => (text ? h("p", { class: "note" }, shown(text)) : "");
  const labelled = (name, control, cls) => h("label", { class: cls }, name, control);
  // The options' values are their places in the list, so no text of a run becomes one.
  function choice(name, options, chosen, act) {
    const control = h("select", { onchange: () => act(options[control.selectedIndex][0]) },
      options.map(([, text]) => h("option", {}, clip(text, 60))));
    control.selectedIndex = Math.max(0, options.findIndex(([value]) => value === chosen));
    return labelled(name, control);
  }
  function searching(name, hint, act) {
    let waiting;
    return labelled(name, h("input", { type: "search", placeholder: hint, oninput: (event) => {
      clearTimeout(waiting);
      waiting = setTimeout(() => act(event.target.value.trim().toLowerCase()), 160);
    } }), "grow");
  }

  // ---- Theme

  const themes = ["auto", "light", "dark"];
  let theme = "auto";
  try { theme = themes.includes(localStorage.getItem("theme")) ? localStorage.getItem("theme") : "auto"; } catch { /* no storage on file: */ }
  const repaints = new Set(); // what is drawn on a canvas takes its colours anew
  const probe = h("i", { hidden: true });
  document.body.append(probe);
  function colour(name) {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  }
  const faded = (rgb, share) => rgb.replace(/^rgba?\(([^)]*)\)$/, (_, inside) => `rgba(${inside.split(",").slice(0, 3).join(",")}, ${share})`);
  function setTheme(name) {
    if (name === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = name;
    byId("theme").replaceChildren({ auto: "◐", light: "☀", dark: "☾" }[name], h("span", {}, { auto: " Auto", light: " Light", dark: " Dark" }[name]));
    byId("theme").setAttribute("aria-label", `Theme: ${name}. Switch`);
    for (const each of repaints) each();
  }
  byId("theme").hidden = false;
  byId("theme").addEventListener("click", () => {
    theme = themes[(themes.indexOf(theme) + 1) % themes.length];
    try { localStorage.setItem("theme", theme); } catch { /* kept for this visit */ }
    setTheme(theme);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => theme === "auto" && setTheme(theme));

  // ---- The verdict's table: where the values lie between 0 and 1, with their intervals

  function svg(tag, attributes, ...children) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }
  function ranges() {
    for (const table of document.querySelectorAll("table.measured")) {
      const names = [...table.tHead.rows[0].cells].map((each) => each.textContent);
      const places = ["before", "after"].map((each) => names.indexOf(each));
      if (places.includes(-1)) continue;
      const found = [...table.tBodies[0].rows].map((row) => places.map((at) => (row.cells[at].textContent.match(/-?\d+(\.\d+)?/g) || []).map(Number)));
      const fits = (each) => each.length > 0 && each.every((value) => value >= 0 && value <= 1);
      if (!found.some(([, after]) => fits(after))) continue;
      table.tHead.rows[0].append(h("th", { class: "range", scope: "col" }, "0 to 1: ", h("span", { class: "was" }, "● before "), h("span", { class: "is" }, "● after")));
      [...table.tBodies[0].rows].forEach((row, index) => {
        const cell = h("td", { class: "range" });
        const [before, after] = found[index];
        if (fits(before) || fits(after)) {
          const x = (value) => 4 + 112 * value;
          const drawing = svg("svg", { width: 120, height: 18, "aria-hidden": "true" }, svg("line", { class: "track", x1: x(0), x2: x(1), y1: 9, y2: 9 }));
          [[before, "before", 6], [after, "after", 12]].forEach(([values, name, y]) => {
            if (!fits(values)) return;
            if (values.length === 3) drawing.append(svg("line", { class: name, x1: x(values[1]), x2: x(values[2]), y1: y, y2: y, "stroke-width": 2 }));
            drawing.append(svg("circle", { class: name, cx: x(values[0]), cy: y, r: 3 }));
          });
          cell.append(drawing);
        }
        row.append(cell);
      });
    }
  }

  // ---- Curves

  const tip = byId("tip");
  function tips(target, text) {
    const show = () => {
      tip.textContent = text;
      tip.hidden = false;
      const at = target.getBoundingClientRect();
      tip.style.left = `${Math.max(8, Math.min(at.left, innerWidth - tip.offsetWidth - 8))}px`;
      tip.style.top = at.bottom + tip.offsetHeight + 12 > innerHeight ? `${at.top - tip.offsetHeight - 6}px` : `${at.bottom + 6}px`;
    };
    const hide = () => { tip.hidden = true; };
    for (const name of ["mouseenter", "focus", "click"]) target.addEventListener(name, show);
    for (const name of ["mouseleave", "blur"]) target.addEventListener(name, hide);
  }
  addEventListener("keydown", (event) => { if (event.key === "Escape") tip.hidden = true; });
  addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });

  function bounds(lines, range) {
    const [low, high] = range || [null, null];
    let least = Infinity, most = -Infinity;
    for (const line of lines)
      for (const values of [line.y, line.low || [], line.high || []])
        for (const value of values)
          if (Number.isFinite(value)) { least = Math.min(least, value); most = Math.max(most, value); }
    if (least > most) [least, most] = [0, 1];
    // Rounding noise about zero is shown as the flat line it is; a quantity with a bound may be small by nature.
    const free = low === null && high === null;
    const span = Math.max(most - least, 1e-3 * Math.max(Math.abs(least), Math.abs(most)), free ? 1e-4 : 1e-6);
    const pad = (span - (most - least)) / 2 + 0.06 * span;
    const bottom = least < 0 ? least - pad : least < 0.25 * most ? 0 : Math.max(0, least - pad);
    if (low === 0 && known(high) && most > 0 && most < high / 10) return [0, Math.max(1.15 * most, high / 50)]; // a share that stays small
    return [low ?? bottom, high ?? (most <= 0 && least < 0 && most + pad > 0 ? 0 : most + pad)];
  }

  const visible = "IntersectionObserver" in window
    ? new IntersectionObserver((entries) => entries.forEach((each) => each.isIntersecting && each.target.draw && each.target.draw()), { rootMargin: "300px" })
    : null;
  function whenSeen(target, draw) {
    target.draw = () => { delete target.draw; visible?.unobserve(target); draw(); };
    if (visible) visible.observe(target);
    else target.draw();
  }

  // Several runs have a colour each and kinds of lines for their metrics; the metrics of one run have the colours.
  const several = [...(page.charts?.main || []), ...(page.charts?.rest || [])].some((chart) => chart.lines.some((line) => line.run > 0));

  function figure(chart) {
    const holder = h("div", { class: "plot", tabIndex: 0, role: "img", "aria-label": `${clip(chart.title, 120)}: curve by step; left and right arrows read values` });
    const legend = h("div", { class: "legend" });
    const meaning = clip(chart.note || "No meaning is recorded for this metric.", 1200);
    const info = h("button", { class: "info", type: "button", "aria-label": `What it means: ${meaning}` }, "?");
    const title = h("span", {}, clip(chart.title, 160));
    tips(info, meaning);
    tips(title, meaning);
    const caption = h("figcaption", {}, title, chart.unit && h("span", { class: "unit" }, clip(chart.unit, 40)), info);
    const shades = [...new Map((chart.shaded || []).map((each) => [each.why, each])).values()];
    const made = h("figure", { class: "chart" }, caption, holder, legend, shades.map((each) => h("p", { class: "shade-note" }, `Shaded: ${clip(each.why, 200)}`)));
    const lines = (chart.lines || []).filter((line) => line.x.length);
    if (!lines.length) {
      holder.replaceWith(empty("This run logged no values for it."));
      return made;
    }
    // Lines of another magnitude are read off the right axis: the data say which, or they differ by more than twenty.
    const tops = lines.map((line) => line.y.reduce((most, value) => (Number.isFinite(value) ? Math.max(most, Math.abs(value)) : most), 0));
    const top = Math.max(...tops), said = lines.some((line) => line.right);
    const right = new Set(lines.filter((line, index) => (said ? line.right : tops[index] > 0 && tops[index] < top / 20)));
    const seen = new Map();
    const looks = lines.map((line) => {
      const nth = seen.get(line.run) ?? 0;
      if (line.style !== "thin" && !(several && line.style === "points")) seen.set(line.run, nth + 1);
      const kind = line.style === "points" ? "points" : ["", "dashed", "dotted"][several ? nth % 3 : Number(line.style === "dashed")];
      return { name: `c${(several ? line.run : nth) % 7}`, kind, dash: { dashed: [6, 4], dotted: [2, 3] }[kind] || [] };
    });
    let plot = null;
    const values = lines.map(() => h("b"));
    const hidden = new Set();
    const step = h("span", { class: "at" });
    const buttons = lines.map((line, index) => {
      const swatch = h("i", { class: `swatch ${looks[index].kind}` });
      swatch.style.borderTopColor = `var(--${looks[index].name})`;
      if (line.style === "points") swatch.style.background = `var(--${looks[index].name})`;
      const [name, others] = line.label.split(" (= "); // curves with the same values are one line, whose title names them all
      const button = h("button", { type: "button", "aria-pressed": "true", title: clip(line.label, 300), onclick: () => {
        if (!hidden.delete(index)) hidden.add(index);
        button.setAttribute("aria-pressed", String(!hidden.has(index)));
        plot?.setSeries(places[index], { show: !hidden.has(index) });
      } }, swatch, h("span", {}, clip(name, 70), others ? h("span", { class: "unit" }, ` +${others.split(", ").length} equal`) : "", right.has(line) ? ` (right${chart.right?.unit ? `, ${clip(chart.right.unit, 30)}` : ""})` : ""), values[index]);
      return line.style === "thin" ? null : button;
    });
    legend.append(step, ...buttons.filter(Boolean));

    const xs = [...new Set(lines.flatMap((line) => line.x))].sort((a, b) => a - b);
    const at = new Map(xs.map((x, index) => [x, index]));
    const data = [xs], series = [{}], bands = [], places = [];
    const column = (line, ys) => {
      const out = new Array(xs.length); // undefined: another line's step, which this one spans; null: a gap
      line.x.forEach((x, index) => { out[at.get(x)] = Number.isFinite(ys[index]) ? ys[index] : null; });
      return out;
    };
    function read(index) {
      lines.forEach((line, nth) => {
        const column = data[places[nth]];
        let where = index ?? xs.length - 1;
        while (where >= 0 && (column[where] === undefined || column[where] === null)) where--;
        const [low, high] = [line.low, line.high].map((edge) => edge && edge[line.x.indexOf(xs[where])]);
        values[nth].textContent = where < 0 ? "–" : num(column[where]) + (Number.isFinite(low) && Number.isFinite(high) ? ` [${num(low)}, ${num(high)}]` : "");
      });
      step.textContent = index === null ? "latest" : `step ${num(xs[index])}`;
    }
    lines.forEach((line, nth) => {
      const look = looks[nth];
      const stroke = () => colour(look.name);
      const points = line.style === "points", scale = right.has(line) ? "right" : "y";
      if (line.low && line.high && !points) {
        for (const edge of [line.high, line.low]) {
          data.push(column(line, edge));
          series.push({ scale, width: 0, points: { show: false }, spanGaps: true, stroke: "transparent" });
        }
        bands.push({ series: [data.length - 2, data.length - 1], fill: () => faded(colour(look.name), 0.16) });
      }
      places.push(data.length);
      data.push(column(line, line.y));
      series.push({ scale, stroke, width: line.style === "thin" ? 0.8 : 1.8, dash: look.dash, spanGaps: false, ...(points ? { paths: () => null } : {}),
        points: points ? { show: true, size: 6, fill: stroke } : xs.length > 60 ? { show: false } : { size: 4, fill: stroke } });
    });
    read(null);
    const limits = bounds(lines.filter((line) => !right.has(line)), chart.range), limitsRight = bounds([...right], (chart.right || {}).range);
    const axis = (extra) => ({ stroke: () => colour("soft"), font: "11px system-ui, sans-serif", ticks: { show: false },
      grid: { stroke: () => colour("rule"), width: 1 }, ...extra });
    function draw() {
      plot = new uPlot({
        width: Math.max(200, holder.clientWidth), height: 210, legend: { show: false }, series, bands, padding: [8, 10, 0, 0],
        scales: { x: { time: false, range: (_, low, high) => (low === high ? [low - 1, high + 1] : [low - 0.015 * (high - low), high + 0.015 * (high - low)]) }, y: { range: () => limits }, ...(right.size ? { right: { range: () => limitsRight } } : {}) },
        axes: [axis({ size: 26, gap: 4, incrs: [1, 2, 5].flatMap((each) => [...Array(8).keys()].map((power) => each * 10 ** power)).sort((a, b) => a - b) }), axis({ size: 50, gap: 4, values: (_, ticks) => ticks.map(num) }),
          ...(right.size ? [axis({ scale: "right", side: 1, size: 50, gap: 4, grid: { show: false }, values: (_, ticks) => ticks.map(num) })] : [])],
        cursor: { y: false, points: { size: 7 } },
        hooks: {
          drawClear: [(self) => {
            for (const zone of chart.shaded || []) {
              const from = self.valToPos(zone.from, "x", true), to = Math.max(self.valToPos(zone.to, "x", true), from + 2);
              self.ctx.fillStyle = faded(colour("shade"), 0.22);
              self.ctx.fillRect(from, self.bbox.top, to - from, self.bbox.height);
            }
          }],
          draw: [(self) => lines.forEach((line, nth) => { // points measured apart from each other have bars, no band between them
            if (line.style !== "points" || !line.low || !line.high || hidden.has(nth)) return;
            self.ctx.strokeStyle = colour(looks[nth].name);
            self.ctx.lineWidth = 1.5 * devicePixelRatio;
            self.ctx.beginPath();
            line.x.forEach((x, index) => {
              if (!Number.isFinite(line.low[index]) || !Number.isFinite(line.high[index])) return;
              const at = self.valToPos(x, "x", true);
              self.ctx.moveTo(at, self.valToPos(line.low[index], right.has(line) ? "right" : "y", true));
              self.ctx.lineTo(at, self.valToPos(line.high[index], right.has(line) ? "right" : "y", true));
            });
            self.ctx.stroke();
          })],
          setCursor: [(self) => read(self.cursor.idx ?? null)],
        },
      }, data, holder);
      repaints.add(function again() {
        if (holder.isConnected) return plot.redraw(false, true);
        repaints.delete(again); // a search has replaced it
        return plot.destroy();
      });
      new ResizeObserver(() => {
        const width = Math.max(200, holder.clientWidth);
        if (width !== plot.width) plot.setSize({ width, height: 210 });
      }).observe(holder);
    }
    let cursor = xs.length;
    holder.addEventListener("keydown", (event) => {
      if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
      event.preventDefault();
      cursor = Math.max(0, Math.min(xs.length - 1, cursor + (event.key === "ArrowLeft" ? -1 : 1)));
      plot?.setCursor({ left: plot.valToPos(xs[cursor], "x"), top: 20 });
      read(cursor);
    });
    whenSeen(holder, draw);
    return made;
  }

  function drawCurves(section) {
    const { main = [], rest = [], constant = [] } = page.charts || {};
    if (!main.length && !rest.length) {
      section.append(empty("No metric was logged yet: metrics.jsonl is empty or missing."));
      return;
    }
    section.append(h("div", { class: "charts" }, main.map(figure)));
    if (constant.length) section.append(h("details", {}, h("summary", {}, `Metrics that never changed (${constant.length})`), h("div", { class: "scroll" }, h("table", {}, h("tbody", {},
      constant.slice(0, 500).map(([name, value, meaning]) => h("tr", {}, h("th", { scope: "row" }, clip(name, 120)), h("td", {}, clip(value, 40)), h("td", { class: "none" }, clip(meaning, 300)))))))));
    if (!rest.length) return;
    const host = h("div", { class: "charts" });
    const count = h("span", { class: "count", role: "status" });
    let found = rest, most = 60;
    const show = () => {
      host.replaceChildren(...found.slice(0, most).map(figure));
      count.textContent = `${found.length} of ${plural(rest.length, "chart")}`;
      if (found.length > most) host.append(h("button", { type: "button", onclick: () => { most += 60; show(); } }, "Show more"));
      if (!found.length) host.append(empty("No metric has this in its name or meaning."));
    };
    const field = searching("Search by name or meaning", "kl, entropy, length …", (text) => {
      found = rest.filter((chart) => `${chart.title} ${chart.search} ${chart.note}`.toLowerCase().includes(text));
      show();
    });
    const details = h("details", { id: "rest", ontoggle: () => { if (details.open && !host.children.length) show(); } },
      h("summary", {}, `All other metrics (${plural(rest.length, "chart")})`), h("div", { class: "bar-row" }, field, count), host);
    section.insertBefore(details, section.querySelector(":scope > .charts").nextSibling);
  }

  // ---- Votes

  const VIRIDIS = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
  function viridis(share) {
    const place = Math.max(0, Math.min(1, share)) * (VIRIDIS.length - 1), at = Math.min(VIRIDIS.length - 2, Math.floor(place));
    return `rgb(${VIRIDIS[at].map((low, i) => Math.round(low + (VIRIDIS[at + 1][i] - low) * (place - at))).join(",")})`;
  }
  const known = (value) => value !== null && value !== undefined;
  const merit = (item) => (known(item.reward) ? item.reward : item.true); // rollouts of an evaluation have no reward, but are graded
  const rewarded = (item) => merit(item) > 0;
  const sign = (item) => (!known(merit(item)) ? "" : !rewarded(item) ? "down" : known(item.true) && item.true <= 0 ? "fooled" : "up");

  function drawVotes(section, run) {
    const votes = run && run.votes;
    if (!votes || !votes.tasks.length) {
      section.append(empty("No votes: nothing was sampled in groups here. A run of SFT alone, an optimization and a skill bank have none."));
      return;
    }
    section.append(note("Each cell is one vote: a prompt at a step. Its colour is the share of samples that gave the winning answer. Where each step is sorted, a row is no prompt: choose “prompts × steps” to follow one."));
    const steps = votes.steps, judged = votes.tasks.some((task) => task.cells.some((cell) => known(cell.correct)));
    const total = votes.tasks.reduce((sum, task) => sum + task.cells.length, 0);
    const full = total / (votes.tasks.length * Math.max(1, steps.length));
    const state = { mode: full < 0.3 ? "packed" : "steps", order: "given", which: "all", text: "" };
    let model, selected = null, geometry;
    const canvas = h("canvas"), spacer = h("div");
    const live = h("p", { class: "unseen", role: "status" });
    const box = h("div", { class: "grid", tabIndex: 0, role: "application", "aria-roledescription": "grid of votes",
      "aria-label": "Votes: prompts by steps. Arrow keys move from vote to vote; the details stand next to the grid." }, spacer);
    spacer.append(canvas);
    const detail = h("div", { class: "detail" }, empty("Choose a cell: its answers, the rule that counted two as equal, and its rollouts stand here."));
    const count = h("span", { class: "count", role: "status" });

    function build() {
      const cellsOf = (task) => task.cells.filter((cell) => state.which === "all" || (state.which === "flip" ? cell.flip : cell.correct === false));
      let tasks = votes.tasks.filter((task) => !state.text || `${task.id} ${task.prompt ?? ""}`.toLowerCase().includes(state.text));
      const last = (task) => task.cells[task.cells.length - 1];
      if (state.order === "unsure") tasks = [...tasks].sort((a, b) => (last(a)?.share ?? 1) - (last(b)?.share ?? 1));
      if (state.order === "flips") tasks = [...tasks].sort((a, b) => b.cells.filter((c) => c.flip).length - a.cells.filter((c) => c.flip).length);
      const rows = [];
      let columns = steps;
      if (state.mode === "packed") {
        const by = new Map(steps.map((step) => [step, []]));
        for (const task of tasks) for (const cell of cellsOf(task)) by.get(cell.step)?.push({ task, cell });
        steps.forEach((step, at) => by.get(step).sort((a, b) => b.cell.share - a.cell.share).forEach((entry, row) => {
          (rows[row] ??= { cells: new Map() }).cells.set(at, entry);
        }));
      } else {
        const at = new Map(steps.map((step, index) => [step, index]));
        let widest = 0;
        for (const task of tasks) {
          const cells = cellsOf(task);
          if (!cells.length) continue;
          rows.push({ task, cells: new Map(cells.map((cell, nth) => [state.mode === "visits" ? nth : at.get(cell.step), { task, cell }])) });
          widest = Math.max(widest, cells.length);
        }
        if (state.mode === "visits") columns = Array.from({ length: widest }, (_, nth) => nth + 1);
      }
      model = { rows, columns };
      const votesShown = rows.reduce((sum, row) => sum + row.cells.size, 0);
      count.textContent = `${votesShown.toLocaleString("en")} of ${plural(total, "vote")}, ${plural(votes.tasks.length, "prompt")}`;
      layout();
    }
    function layout() {
      const wide = box.clientWidth || 600;
      const gutter = state.mode === "packed" ? 6 : wide < 500 ? 80 : 160;
      const w = Math.max(7, Math.min(56, Math.floor((wide - gutter - 8) / Math.max(1, model.columns.length))));
      const tall = state.mode === "packed" ? Math.max(7, Math.min(16, Math.floor(440 / Math.max(1, model.rows.length)))) : 16;
      geometry = { gutter, w, h: tall, top: 20, wide, high: Math.min(20 + model.rows.length * tall + 4, Math.min(innerHeight * 0.7, 540)) };
      spacer.style.width = `${gutter + model.columns.length * w + 4}px`;
      spacer.style.height = `${geometry.top + model.rows.length * tall + 4}px`;
      paint();
    }
    function paint() {
      const { gutter, w, h: tall, top } = geometry, dpr = window.devicePixelRatio || 1;
      const wide = Math.min(box.clientWidth, gutter + model.columns.length * w + 4), high = Math.min(box.clientHeight || geometry.high, top + model.rows.length * tall + 4);
      canvas.width = Math.max(1, wide * dpr);
      canvas.height = Math.max(1, high * dpr);
      canvas.style.width = `${wide}px`;
      canvas.style.height = `${high}px`;
      const ctx = canvas.getContext("2d"), left = box.scrollLeft, up = box.scrollTop;
      ctx.scale(dpr, dpr);
      const colours = { ink: colour("ink"), soft: colour("soft"), raised: colour("raised"), accent: colour("accent"), sunken: colour("sunken") };
      ctx.fillStyle = colours.raised;
      ctx.fillRect(0, 0, wide, high);
      ctx.font = "11px system-ui, sans-serif";
      ctx.textBaseline = "middle";
      const firstRow = Math.max(0, Math.floor(up / tall)), lastRow = Math.min(model.rows.length, Math.ceil((up + high) / tall));
      const firstColumn = Math.max(0, Math.floor(left / w)), lastColumn = Math.min(model.columns.length, Math.ceil((left + wide) / w));
      const gap = w > 9 && tall > 9 ? 1 : 0.5;
      for (let row = firstRow; row < lastRow; row++) {
        const y = top + row * tall - up;
        for (let column = firstColumn; column < lastColumn; column++) {
          const entry = model.rows[row].cells.get(column), x = gutter + column * w - left;
          if (!entry) {
            if (state.mode !== "packed") { ctx.fillStyle = colours.sunken; ctx.fillRect(x, y, w - gap, tall - gap); }
            continue;
          }
          ctx.fillStyle = viridis(entry.cell.share);
          ctx.fillRect(x, y, w - gap, tall - gap);
          mark(ctx, entry.cell, x, y, w - gap, tall - gap);
          if (selected === entry.cell) {
            for (const [style, width] of [["#000", 3.5], ["#fff", 1.5]]) { // seen on every colour
              ctx.strokeStyle = style;
              ctx.lineWidth = width;
              ctx.strokeRect(x + 1, y + 1, w - gap - 2, tall - gap - 2);
            }
          }
        }
      }
      ctx.fillStyle = colours.raised;
      ctx.fillRect(0, 0, wide, top);
      if (gutter > 10) ctx.fillRect(0, 0, gutter - 2, high);
      ctx.fillStyle = colours.soft;
      if (gutter > 10) for (let row = firstRow; row < lastRow; row++) {
        const y = top + row * tall - up + tall / 2;
        if (y > top) ctx.fillText(ends(model.rows[row].task.id, gutter > 100 ? 26 : 12), 6, y, gutter - 12);
      }
      const every = Math.ceil(26 / w);
      ctx.textAlign = "center";
      for (let column = firstColumn; column < lastColumn; column++)
        if (column % every === 0 && gutter + column * w - left >= gutter - 2) ctx.fillText(String(model.columns[column]), gutter + column * w - left + w / 2, top / 2);
      ctx.textAlign = "left";
      if (gutter > 100) ctx.fillText(state.mode === "visits" ? "visit" : "step", 6, top / 2);
    }
    // Marks differ in shape, not in colour alone: a cross where the majority is wrong, a dot where it changed since the last visit.
    function mark(ctx, cell, x, y, w, tall) {
      const size = Math.min(w, tall), light = cell.share < 0.6 ? "#fff" : "#000";
      if (cell.correct === false) {
        const r = Math.max(2, size * 0.27), cx = x + w / 2, cy = y + tall / 2;
        ctx.strokeStyle = light;
        ctx.lineWidth = size > 9 ? 1.6 : 1.1;
        ctx.beginPath();
        ctx.moveTo(cx - r, cy - r); ctx.lineTo(cx + r, cy + r); ctx.moveTo(cx + r, cy - r); ctx.lineTo(cx - r, cy + r);
        ctx.stroke();
      }
      if (cell.flip) {
        ctx.fillStyle = light;
        ctx.beginPath();
        ctx.arc(x + Math.max(2.5, size * 0.32), y + tall / 2, Math.max(1.5, size * 0.19), 0, 7);
        ctx.fill();
      }
    }
    function choose(row, column, move) {
      const entry = model.rows[row]?.cells.get(column);
      if (!entry) return;
      selected = entry.cell;
      geometry.at = [row, column];
      if (move) {
        const { gutter, w, h: tall, top } = geometry, x = column * w, y = row * tall;
        if (y < box.scrollTop) box.scrollTop = y;
        if (y + tall + top > box.scrollTop + box.clientHeight) box.scrollTop = y + tall + top - box.clientHeight + 4;
        if (x < box.scrollLeft) box.scrollLeft = x;
        if (x + w + gutter > box.scrollLeft + box.clientWidth) box.scrollLeft = x + w + gutter - box.clientWidth + 4;
      }
      paint();
      show(entry);
    }
    function show({ task, cell }) {
      const classes = cell.classes || [], most = Math.max(1, ...classes.map(([, votes]) => votes), cell.abstained || 0);
      const bars = classes.slice(0, 12).map(([answer, votes], index) => {
        const stick = h("span", { class: `stick${answer === cell.winner ? " winner" : ""}` });
        stick.style.width = `${(100 * votes) / most}%`;
        return [h("span", { class: `answer${answer === cell.winner ? " winner" : ""}`, title: clip(answer, 500) }, one(answer, 60) ), stick, h("span", {}, num(votes))];
      });
      if (cell.abstained) {
        const stick = h("span", { class: "stick abstained" });
        stick.style.width = `${(100 * cell.abstained) / most}%`;
        bars.push([h("span", { class: "answer" }, "no answer"), stick, h("span", {}, num(cell.abstained))]);
      }
      const truth = cell.correct === true ? ", and it is right" : cell.correct === false ? ", and it is wrong" : "";
      const items = (cell.rollouts || []).map((index) => run.rollouts?.items[index]).filter(Boolean);
      detail.replaceChildren(
        h("p", { class: "name" }, one(task.id, 200)),
        h("p", { class: "note" }, cell.winner === null || cell.winner === undefined ? `Step ${cell.step}: no winner.` : `Step ${cell.step}: ${Math.round(100 * cell.share)}% say ${one(cell.winner, 80)}${truth}.`,
          cell.tie ? " A tie, decided by the rule." : "", cell.flip ? " The winner changed since the last visit." : ""),
        ...(task.prompt ? [h("h3", {}, "Prompt"), block(task.prompt)] : []),
        h("h3", {}, "Answers"), h("div", { class: "hist" }, bars), classes.length > 12 ? note(`and ${classes.length - 12} more`) : "",
        ...(cell.rule ? [h("h3", {}, "Counted as equal"), h("p", {}, clip(cell.rule, 600))] : []),
        h("h3", {}, "Rollouts"), items.length ? h("div", { class: "chips" }, items.map((item) => chip(item)))
          : note("None of this vote's rollouts is in the page."),
        run.rollouts?.items.some((item) => item.task === task.id) ? h("p", {}, h("button", { class: "plain", type: "button", onclick: () => openTask(task.id) }, "Compare this prompt's rollouts")) : "",
        ...(task.cells.length > 1 ? [h("h3", {}, "All visits"), h("div", { class: "chips few" }, task.cells.map((each) => {
          const box = h("i", { class: "box" });
          box.style.background = viridis(each.share);
          return h("button", { class: `chip${each === cell ? " on" : ""}`, type: "button", title: `step ${each.step}: ${one(each.winner, 60)}`, onclick: () => { selected = each; paint(); show({ task, cell: each }); } }, box, `step ${each.step}`);
        }))] : []),
      );
      live.textContent = `${one(task.id, 60)}, step ${cell.step}: ${Math.round(100 * cell.share)}% ${one(cell.winner, 40)}${truth}`;
    }
    box.addEventListener("scroll", () => requestAnimationFrame(paint), { passive: true });
    box.addEventListener("click", (event) => {
      const at = canvas.getBoundingClientRect(), { gutter, w, h: tall, top } = geometry;
      choose(Math.floor((event.clientY - at.top - top + box.scrollTop) / tall), Math.floor((event.clientX - at.left - gutter + box.scrollLeft) / w));
    });
    box.addEventListener("keydown", (event) => {
      const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
      if (!move) return;
      event.preventDefault();
      let [row, column] = geometry.at || [0, -1];
      if (!geometry.at) { move[0] = 0; move[1] = 1; }
      for (let hops = 0; hops < 1e4; hops++) { // over the empty cells to the next vote; a row's end goes on in the next
        row += move[0];
        column += move[1];
        if (move[1] && (column < 0 || column >= model.columns.length)) { row += move[1]; column = move[1] > 0 ? 0 : model.columns.length - 1; }
        if (row < 0 || row >= model.rows.length) return;
        if (model.rows[row].cells.has(column)) { choose(row, column, true); return; }
      }
    });
    const pick = (name, options, key) => choice(name, options, state[key], (value) => { state[key] = value; geometry.at = null; build(); });
    section.append(
      h("div", { class: "bar-row" },
        pick("Columns", [["packed", "each step sorted by agreement"], ["steps", "prompts × steps"], ["visits", "prompts × visits"]], "mode"),
        pick("Order", [["given", "as first seen"], ["unsure", "least agreed at the end"], ["flips", "most changes of the winner"]], "order"),
        pick("Show", [["all", "all votes"], ["flip", "winner changed"], ...(judged ? [["wrong", "winner is wrong"]] : [])], "which"),
        searching("Prompt", "id or words of the prompt", (text) => { state.text = text; build(); }), count),
      h("div", { class: "two" }, h("div", {}, box, key(judged), live), detail), note(votes.left_out));
    repaints.add(function again() { if (box.isConnected) paint(); else repaints.delete(again); });
    new ResizeObserver(() => { if (geometry && box.clientWidth !== geometry.wide) layout(); }).observe(box);
    build();
  }
  function key(judged) {
    const scale = h("canvas", { width: 110, height: 10 }), ctx = scale.getContext("2d");
    for (let x = 0; x < 110; x++) { ctx.fillStyle = viridis(x / 109); ctx.fillRect(x, 0, 1, 10); }
    return h("div", { class: "key" }, h("span", {}, "0% ", scale, " 100% agree"), h("span", {}, "● winner changed since the last visit"),
      h("span", {}, judged ? "✕ winner is wrong" : "right or wrong is not known here"));
  }

  // ---- Rollouts

  const link = (item) => {
    try { return `#rollout=${encodeURIComponent(item.id)}${current ? `&run=${current}` : ""}`; } catch { return "#rollouts"; }
  };
  // A click opens the rollout itself, as two may have one id; its address can be copied and sent.
  const opening = (item) => ({ href: link(item), onclick: (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    openRollout(item, runs[current]);
    try { history.replaceState(null, "", link(item)); } catch { /* the address stays */ }
  } });
  const chip = (item) => h("a", { class: `chip ${sign(item)}`, ...opening(item), title: `sample ${item.sample}, reward ${num(item.reward)}` }, String(item.sample));
  let openTask = () => {}, filterSkill = () => {};
  // A name of a run goes into a shell as one word, whatever stands in it.
  const word = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${clip(text, 300).replaceAll("'", "'\\''")}'`);
  const command = (run, option, id, does = "inspect") => h("code", { class: "command" }, `skillttrl ${does} ${word(run?.path || run?.name || "RUN")} ${option} ${word(id)}`);
  function missing(place, why, run, option, id) {
    place.querySelector(":scope > .missing")?.remove();
    place.prepend(h("div", { class: "missing" }, empty(`${why} To look for it in the run's folder:`), command(run, option, id)));
    place.scrollIntoView();
  }

  function part(label, cls, body) { return h("div", { class: `part ${cls}` }, h("span", { class: "label" }, label), body); }
  function turns(item, run, options = {}) {
    if (!item.turns) return h("div", {}, note("This transcript was left out of the page to keep it small. To read it:"), reading(run, item));
    const texts = run.rollouts.texts, text = (index) => (index === null || index === undefined ? null : texts[index]);
    let seen = options.prompt ?? null; // the prompt stands above the cards, where all have the same
    return h("div", {}, item.turns.slice(0, options.most || 400).map((turn, nth) => {
      const said = text(turn.said), action = text(turn.action), thought = text(turn.thought), obs = text(turn.obs);
      const parts = item.turns.length > 1 ? [h("p", { class: "turn-head" }, `Turn ${nth + 1}${turn.reward ? `, reward ${num(turn.reward)}` : ""}`)] : [];
      if (obs && obs !== seen) parts.push(part(nth ? "Observation" : "Prompt", "obs", block(obs)));
      seen = obs;
      if (thought) parts.push(h("details", { class: "part" }, h("summary", { class: "note" }, `Thought, ${plural(thought.length, "character")}`), block(thought)));
      if (options.tokens && turn.tokens) parts.push(part("Tokens", "said", tokens(turn.tokens, item)));
      else if (said) parts.push(part("Said", "said", block(said, turn.inserted)));
      let own = said ?? "";
      for (const [from, to] of [...(turn.inserted || [])].reverse()) own = own.slice(0, from) + own.slice(to);
      if (action !== null && action.trim() !== own.trim() && action.trim() !== (said ?? "").trim()) parts.push(part("Action", "action", block(action)));
      for (const [name, given, result, error] of turn.calls || []) {
        parts.push(part(`Tool call: ${clip(name, 80)}`, "call", block(text(given))));
        if (result !== null && result !== undefined) parts.push(part("Result", "obs", block(text(result))));
        if (error) parts.push(part("Tool error", "bad", block(error)));
      }
      if (turn.why || (turn.status && turn.status !== "valid")) parts.push(part(`Action ${clip(turn.status || "not parsed", 40)}`, "bad", block(turn.why || "")));
      return h("div", { class: "turn" }, parts);
    }), known(item.final) && item.turns.length <= (options.most || 400) && texts[item.final] ? part("Last observation", "obs", block(texts[item.final])) : "",
      item.turns.length > (options.most || 400) ? note(`${item.turns.length - options.most} more turns: open the rollout.`) : "");
  }
  function tokens(found, item) {
    const advantage = Array.isArray(item.advantage) ? item.advantage.find((each) => Number.isFinite(each)) ?? 0 : item.advantage ?? 0;
    const strength = 0.12 + 0.4 * Math.min(1, Math.abs(advantage) / 2);
    const tint = advantage > 0 ? "c0" : "c1";
    return h("div", {}, h("div", { class: "tokens" }, found.pieces.slice(0, 6000).map((piece, index) => {
      const own = found.own ? found.own[index] === "1" : true, logp = found.logp && found.logp[index];
      const span = h("span", { class: own ? "" : "given", title: `${own ? `sampled, log-prob ${num(logp)}` : "inserted, not trained on"}${own ? `, advantage ${num(advantage)}` : ""}` }, shown(piece));
      if (own && advantage) span.style.background = `color-mix(in srgb, var(--${tint}) ${Math.round(100 * strength)}%, transparent)`;
      return span;
    })), h("p", { class: "note" }, advantage ? `Tinted: sampled tokens, with advantage ${num(advantage)} (${advantage > 0 ? "made likelier: blue" : "made less likely: orange"}). Dotted underline: inserted, not trained on.` : "No advantage was recorded. Dotted underline: inserted, not trained on."));
  }
  const rewardText = (item) => (known(item.reward) ? h("span", { class: `reward ${sign(item)}` }, `reward ${num(item.reward)}`)
    : known(item.true) ? h("span", { class: `reward ${sign(item)}` }, item.true > 0 ? "correct" : "wrong") : h("span", { class: "none" }, "no reward"));
  const truthText = (item) => (item.true === null || item.true === undefined || !known(item.reward) || item.true === item.reward ? null : h("span", { class: "tag" }, `true score ${num(item.true)}`));

  function card(item, run, prompt) {
    const body = h("div", { class: "body", tabIndex: 0, "aria-label": `transcript of sample ${item.sample}` });
    whenSeen(body, () => body.append(turns(item, run, { most: 30, prompt })));
    return h("article", { class: `card ${sign(item)}` }, h("header", {}, h("strong", {}, `#${item.sample}`), rewardText(item), truthText(item),
      h("a", { class: "right", ...opening(item) }, "open"),
      item.answer !== null && item.answer !== undefined && h("span", { class: "tag" }, `answer ${one(item.answer, 40)}`),
      item.stop && item.stop !== "terminated" && h("span", { class: "tag" }, clip(item.stop, 30)),
      item.error && h("span", { class: "tag error" }, one(item.error, 80)),
      (item.retrieved || []).length > 0 && h("span", { class: "tag" }, plural(item.retrieved.length, "skill") + " retrieved")), body);
  }

  // The phases of rollouts in words; those of training keep their names.
  const PHASES = new Map([["before", "evaluation before the training"], ["after", "evaluation after the training"],
    ["collect", "episodes to imitate"], ["dagger_round", "first round of DAgger, before its training"]]);
  const IMITATED = new Map([["collect", "collected.jsonl"], ["dagger_round", "dagger.jsonl"]]); // and their files, whose lines have no ids
  const reading = (run, item) => (IMITATED.has(item.phase) ? h("code", { class: "command" }, `skillttrl inspect ${word(`${run?.path || "RUN"}/${IMITATED.get(item.phase)}`)}`) : command(run, "--episode", item.id));
  const when = (item) => PHASES.get(item.phase) ?? `${clip(item.phase, 40)} step ${item.step}`;

  function drawRollouts(section, run) {
    const rollouts = run && run.rollouts;
    openTask = filterSkill = () => {};
    if (!rollouts || !rollouts.items.length) {
      section.append(empty("No rollouts: none was stored yet, or run.save_trajectories is false. An optimization and a skill bank have none."));
      return;
    }
    const { items, texts } = rollouts;
    const state = { phase: null, reward: "any", stop: null, error: "any", type: null, skill: null, text: "" };
    const values = (get) => [...new Set(items.map(get).flat().filter((each) => each !== null && each !== undefined && each !== ""))].sort().slice(0, 300);
    const exact = values((item) => item.reward);
    const list = h("div", { class: "tasks", role: "listbox", tabIndex: 0, "aria-label": "Tasks" }), inner = h("div", { role: "presentation" });
    list.append(inner);
    const panels = h("div"), count = h("span", { class: "count", role: "status" });
    let groups = [], chosen = null, sides = [null, null];
    const visitKey = (item) => `${item.phase}\n${item.step}`;

    const rewards = new Map([
      ["any", () => true], ["yes", rewarded], ["no", (item) => known(merit(item)) && !rewarded(item)],
      ["fooled", (item) => rewarded(item) && known(item.true) && item.true <= 0],
      ["missed", (item) => known(item.reward) && !(item.reward > 0) && item.true > 0],
      ...exact.map((value) => [value, (item) => item.reward === value]),
    ]);
    function apply(keep) {
      let inText = null;
      if (state.text) inText = texts.map((each) => each.toLowerCase().includes(state.text));
      const wants = rewards.get(state.reward);
      const fits = (item) => (state.phase === null || item.phase === state.phase) && wants(item) && (state.stop === null || item.stop === state.stop)
        && (state.error === "any" || (state.error === "yes") === Boolean(item.error)) && (state.type === null || item.type === state.type)
        && (state.skill === null || (item.skills || []).includes(state.skill) || (item.retrieved || []).includes(state.skill))
        && (!inText || `${item.id}\n${item.answer ?? ""}\n${item.error ?? ""}`.toLowerCase().includes(state.text)
          || (item.turns || []).some((turn) => inText[turn.obs] || inText[turn.said] || inText[turn.thought] || inText[turn.action] || (turn.calls || []).some((call) => inText[call[1]] || inText[call[2]])));
      const by = new Map();
      let matching = 0;
      for (const item of items) {
        if (!fits(item)) continue;
        matching++;
        if (by.has(item.task)) by.get(item.task).push(item);
        else by.set(item.task, [item]);
      }
      groups = [...by].map(([task, found]) => ({ task, found }));
      count.textContent = `${matching.toLocaleString("en")} of ${plural(items.length, "rollout")}, ${plural(groups.length, "task")}`;
      if (!keep || !groups.some((each) => each.task === chosen)) chosen = (groups.find((each) => each.found.some((item) => item.phase === "after")) ?? groups[0])?.task ?? null;
      window_();
      list.scrollTop = keep ? 0 : Math.max(0, (groups.findIndex((each) => each.task === chosen) - 3) * HIGH);
      panel();
    }
    const summary = (found) => {
      const scores = found.map(merit).filter(known);
      return scores.length ? scores.reduce((a, b) => a + b, 0) / scores.length : null;
    };
    const visits = (found) => {
      const by = new Map();
      for (const item of found) by.has(visitKey(item)) ? by.get(visitKey(item)).push(item) : by.set(visitKey(item), [item]);
      return [...by.values()];
    };
    // A problem without an id of its own has a digest for one, which says nothing: its first words stand in its place.
    const nameOf = (task, found) => {
      const item = /^[0-9a-f]{12,}$/.test(task) && found.find((each) => each.turns?.length);
      return item ? clip(texts[item.turns[0].obs], 40) : ends(task, 30);
    };
    const HIGH = 44;
    function window_() { // only the rows in sight are elements
      inner.style.height = `${groups.length * HIGH}px`;
      const first = Math.max(0, Math.floor(list.scrollTop / HIGH) - 4), last = Math.min(groups.length, first + Math.ceil((list.clientHeight || 500) / HIGH) + 8);
      inner.replaceChildren(...groups.slice(first, last).map(({ task, found }, nth) => {
        const seen = visits(found), from = summary(seen[0]), to = summary(seen[seen.length - 1]);
        const row = h("div", { class: "row", role: "option", title: clip(task, 300), "aria-selected": String(task === chosen), "aria-setsize": groups.length, "aria-posinset": first + nth + 1, onclick: () => pick(task) },
          h("span", {}, nameOf(task, found)), h("span", { class: "sub" }, `${plural(found.length, "rollout")}${from === null ? "" : ` · ${found.some((item) => known(item.reward)) ? "reward" : "correct"} ${num(from)}${seen.length > 1 ? ` → ${num(to)}` : ""}`}`));
        row.style.top = `${(first + nth) * HIGH}px`;
        return row;
      }));
      if (!groups.length) inner.replaceChildren(h("p", { class: "empty" }, "No rollout fits these filters."));
    }
    function pick(task) {
      chosen = task;
      sides = [null, null];
      window_();
      panel();
    }
    function panel() {
      const group = groups.find((each) => each.task === chosen);
      if (!group) { panels.replaceChildren(empty("No rollout fits these filters.")); return; }
      const seen = visits(group.found);
      const all = visits(items.filter((item) => item.task === chosen));
      const whole = new Map(all.map((found) => [visitKey(found[0]), found.length]));
      // Imitated episodes next to rollouts of the model, of another task of the same type: often no task has both.
      const mine = group.found[0], other = seen.length > 1 || (run.rollouts.phases || []).every((phase) => !IMITATED.has(phase)) ? null
        : items.find((item) => item.turns && item.type === mine.type && IMITATED.has(item.phase) !== IMITATED.has(mine.phase));
      const counterpart = other ? items.filter((item) => item.task === other.task && item.phase === other.phase && item.step === other.step) : [];
      const at = (side, fallback) => {
        const place = seen.findIndex((found) => visitKey(found[0]) === side);
        return place < 0 ? fallback : place;
      };
      const wanted = [at(sides[0], 0), at(sides[1], seen.length - 1)];
      const first = new Set(group.found.filter((item) => item.turns?.length).map((item) => texts[item.turns[0].obs]));
      const prompt = first.size === 1 ? [...first][0] : undefined;
      const options = seen.map((found, nth) => [nth, when(found[0])]);
      const shape = (side, heading, found = seen[wanted[side]]) => {
        const up = found.filter(rewarded).length, size = side < 0 ? found.length : whole.get(visitKey(found[0]));
        const strip = h("div", { class: "strip", tabIndex: 0, role: "group", "aria-label": `${heading}: samples side by side` });
        let shownCards = 0;
        const add = () => {
          strip.append(...found.slice(shownCards, shownCards + 16).map((item) => card(item, run, prompt)));
          shownCards = Math.min(found.length, shownCards + 16);
          if (shownCards < found.length) {
            const more = h("button", { type: "button", onclick: () => { more.remove(); add(); } }, `${found.length - shownCards} more`);
            strip.append(more);
          }
        };
        add();
        return h("div", { class: "visit" }, h("div", { class: "visit-head" }, h("strong", {}, heading),
          side < 0 ? h("span", {}, `${when(found[0])}, ${ends(found[0].task, 60)}`) : seen.length > 1 ? choice("", options, wanted[side], (nth) => { sides[side] = visitKey(seen[nth][0]); panel(); }) : h("span", {}, clip(options[0][1], 60)),
          h("span", { class: "note" }, `${summary(found) === null ? plural(found.length, "rollout") : found.some((item) => known(item.reward)) ? `${up} of ${found.length} rewarded, mean reward ${num(summary(found))}` : `${up} of ${found.length} correct`}${found.length < size ? ` (${found.length} of ${size} fit the filters)` : ""}`)),
          h("div", { class: "chips" }, found.slice(0, 128).map((item) => chip(item))), strip);
      };
      panels.replaceChildren(h("p", { class: "name" }, h("strong", {}, one(chosen, 300)), group.found[0].type ? h("span", { class: "tag" }, clip(group.found[0].type, 60)) : ""),
        prompt ? part("Prompt", "obs", block(prompt)) : "",
        ...(seen.length > 1 ? [shape(0, "Before"), shape(1, "After")] : [shape(0, "The only visit here")]),
        ...(counterpart.length ? [shape(-1, "Another task of this kind", counterpart)] : []));
    }
    list.addEventListener("scroll", () => requestAnimationFrame(window_), { passive: true });
    list.addEventListener("keydown", (event) => {
      const move = { ArrowUp: -1, ArrowDown: 1 }[event.key];
      if (!move || !groups.length) return;
      event.preventDefault();
      const next = Math.max(0, Math.min(groups.length - 1, groups.findIndex((each) => each.task === chosen) + move));
      if (next * HIGH < list.scrollTop) list.scrollTop = next * HIGH;
      if ((next + 1) * HIGH > list.scrollTop + list.clientHeight) list.scrollTop = (next + 1) * HIGH - list.clientHeight;
      pick(groups[next].task);
    });
    const bar = h("div", { class: "bar-row" });
    function controls() {
      const pickBy = (name, key, options) => choice(name, options, state[key], (value) => { state[key] = value; apply(true); });
      const from = (get, any) => [[null, any], ...values(get).map((each) => [each, String(each)])];
      const paid = items.some((item) => known(item.reward));
      const rewardOptions = [["any", "any"], ["yes", paid ? "rewarded or correct" : "correct"], ["no", paid ? "not rewarded, or wrong" : "wrong"]];
      if (paid && items.some((item) => known(item.true))) rewardOptions.push(["fooled", "rewarded, though wrong"], ["missed", "right, not rewarded"]);
      if (exact.length > 2 && exact.length <= 12) rewardOptions.push(...exact.map((value) => [value, `= ${num(value)}`]));
      const skills = values((item) => [...(item.skills || []), ...(item.retrieved || [])]);
      bar.replaceChildren(
        values((item) => item.phase).length > 1 ? pickBy("Phase", "phase", from((item) => item.phase, "all")) : "",
        pickBy(paid ? "Reward" : "Outcome", "reward", rewardOptions), pickBy("Stop reason", "stop", from((item) => item.stop, "any")),
        pickBy("Error", "error", [["any", "with or without"], ["yes", "with an error"], ["no", "without"]]),
        values((item) => item.type).length > 1 ? pickBy("Task type", "type", from((item) => item.type, "any")) : "",
        skills.length ? pickBy("Skill", "skill", [[null, "any"], ...skills.map((each) => [each, each])]) : "",
        searching("Search", "task, answer or words of a transcript", (text) => { state.text = text; apply(true); }), count);
    }
    controls();
    section.append(bar, h("div", { class: "explore" }, list, panels), note(rollouts.left_out));
    apply();
    new ResizeObserver(window_).observe(list);
    openTask = (task) => {
      Object.assign(state, { phase: null, reward: "any", stop: null, error: "any", type: null, skill: null, text: "" });
      controls();
      chosen = task;
      sides = [null, null];
      apply(true);
      const index = groups.findIndex((each) => each.task === task);
      if (index < 0) return missing(panels, `This page lists no rollout of ${clip(task, 120)}.`, run, "--task", task);
      list.scrollTop = Math.max(0, (index - 3) * HIGH);
      window_();
      section.scrollIntoView();
    };
    filterSkill = (skill) => {
      Object.assign(state, { phase: null, reward: "any", stop: null, error: "any", type: null, skill, text: "" });
      controls();
      apply();
      section.scrollIntoView();
    };
  }

  // One rollout in a drawer; its address is #rollout=ID.
  const drawer = h("dialog", { "aria-label": "Rollout" });
  document.body.append(drawer);
  let withTokens = false;
  function openRollout(item, run) {
    const items = run.rollouts.items, group = items.filter((each) => each.task === item.task && each.phase === item.phase && each.step === item.step);
    const at = group.indexOf(item), other = (by) => group[at + by];
    const hop = (by, text, name) => h("button", { type: "button", disabled: !other(by), "aria-label": name, ...(other(by) && { onclick: opening(other(by)).onclick }) }, text);
    const fact = (name, value) => (value === null || value === undefined || value === "" || value.length === 0 ? null : h("div", {}, h("dt", {}, name), h("dd", {}, value)));
    const body = h("div");
    const draw = () => body.replaceChildren(turns(item, run, { tokens: withTokens }));
    const has = (item.turns || []).some((turn) => turn.tokens);
    const skillLinks = (ids) => (ids || []).slice(0, 40).map((id) => [h("button", { class: "plain", type: "button", onclick: () => { drawer.close(); openSkill(id); } }, one(id, 60)), " "]);
    const advantages = (Array.isArray(item.advantage) ? item.advantage : [item.advantage]).filter((each) => Number.isFinite(each));
    drawer.replaceChildren(
      h("div", { class: "top" }, h("code", {}, clip(item.id, 200)), hop(-1, "‹ previous", "Previous sample"), hop(1, "next ›", "Next sample"),
        h("button", { type: "button", onclick: () => drawer.close() }, "Close")),
      h("div", { class: "inside" }, h("dl", { class: "facts" }, fact("Reward", known(item.reward) ? h("span", { class: `reward ${sign(item)}` }, num(item.reward)) : null), fact("True score", item.true === null || item.true === undefined ? null : num(item.true)),
        fact("Advantage", advantages.slice(0, 6).map(num).join(", ") + (advantages.length > 6 ? " …" : "")), fact("When", `${when(item)}${PHASES.has(item.phase) ? ` (step ${item.step})` : ""}`), fact("Sample", `${item.sample} (${at + 1} of ${group.length} here)`),
        fact("Task", h("button", { class: "plain", type: "button", onclick: () => { drawer.close(); openTask(item.task); } }, one(item.task, 120))), fact("Type", clip(item.type, 60)), fact("Answer", !known(item.answer) ? null : one(item.answer, 200)),
        fact("Stopped by", clip(item.stop, 60)), fact("Bank version", item.bank === null || item.bank === undefined ? null : num(item.bank)), fact("Skills in the prompt", skillLinks(item.skills)), fact("Skills retrieved", skillLinks(item.retrieved))),
      item.error && h("div", { class: "part bad" }, h("span", { class: "label" }, "Error"), block(item.error)),
      has ? h("p", {}, h("button", { type: "button", "aria-pressed": String(withTokens), onclick: (event) => {
        withTokens = !withTokens;
        event.target.setAttribute("aria-pressed", String(withTokens));
        draw();
      } }, "Tokens: mask, advantage, log-prob")) : "", body, h("p", { class: "note" }, "In a terminal:"), reading(run, item), known(item.reward) ? command(run, "--episode", item.id, "replay") : ""));
    draw();
    if (!drawer.open) drawer.showModal();
    drawer.scrollTop = 0;
  }
  drawer.addEventListener("close", () => {
    if (location.hash.startsWith("#rollout=")) try { history.replaceState(null, "", "#rollouts"); } catch { /* the address stays */ }
  });
  drawer.addEventListener("click", (event) => { if (event.target === drawer) drawer.close(); });

  // ---- Skills

  let openSkill = () => {};
  // The longest common subsequence of lines; a text too long for the table is shown as removed and added.
  function diff(before, after) {
    const a = before === null || before === undefined ? [] : String(before).split("\n"), b = after === null || after === undefined ? [] : String(after).split("\n");
    let start = 0, end = 0;
    while (start < a.length && start < b.length && a[start] === b[start]) start++;
    while (end < a.length - start && end < b.length - start && a[a.length - 1 - end] === b[b.length - 1 - end]) end++;
    const x = a.slice(start, a.length - end), y = b.slice(start, b.length - end), out = a.slice(0, start).map((line) => [" ", line]);
    if (x.length * y.length > 4e6) out.push(...x.map((line) => ["-", line]), ...y.map((line) => ["+", line]));
    else {
      const wide = y.length + 1, table = new Uint32Array((x.length + 1) * wide);
      for (let i = x.length - 1; i >= 0; i--)
        for (let j = y.length - 1; j >= 0; j--)
          table[i * wide + j] = x[i] === y[j] ? table[(i + 1) * wide + j + 1] + 1 : Math.max(table[(i + 1) * wide + j], table[i * wide + j + 1]);
      let i = 0, j = 0;
      while (i < x.length || j < y.length) {
        if (i < x.length && j < y.length && x[i] === y[j]) { out.push([" ", x[i]]); i++; j++; }
        else if (i < x.length && (j === y.length || table[(i + 1) * wide + j] >= table[i * wide + j + 1])) out.push(["-", x[i++]]);
        else out.push(["+", y[j++]]);
      }
    }
    return [...out, ...a.slice(a.length - end).map((line) => [" ", line])];
  }
  function diffBlock(before, after) {
    const lines = diff(before, after), near = new Set();
    lines.forEach(([kind], index) => { if (kind !== " ") for (let each = index - 2; each <= index + 2; each++) near.add(each); });
    const box = h("div", { class: "diff" });
    let skipped = 0, drawn = 0;
    const gap = () => { if (skipped) box.append(h("div", { class: "gap" }, `⋯ ${plural(skipped, "unchanged line")}`)); skipped = 0; };
    for (let index = 0; index < lines.length && drawn < 800; index++) {
      const [kind, line] = lines[index];
      if (!near.has(index)) { skipped++; continue; }
      gap();
      drawn++;
      box.append(h("div", { class: kind === "+" ? "add" : kind === "-" ? "del" : "" }, `${kind} ${clip(line, 4000)}`));
    }
    gap();
    if (drawn >= 800) box.append(h("div", { class: "gap" }, "⋯ the rest is left out"));
    return box;
  }

  function drawSkills(section, run) {
    const skills = run && run.skills;
    openSkill = () => {};
    if (!skills || !(skills.versions.length || skills.now.length)) {
      section.append(empty("No skill bank: this run had none (skills.enabled is false), or nothing was ever added to it."));
      return;
    }
    const { now, versions } = skills, items = run.rollouts?.items || [];
    const used = new Map();
    for (const item of items) for (const id of new Set([...(item.skills || []), ...(item.retrieved || [])])) used.set(id, (used.get(id) ?? 0) + 1);
    const evidence = (ids) => (ids && ids.length ? h("p", { class: "note" }, "Evidence: ", ids.slice(0, 20).map((id) => [h("button", { class: "plain", type: "button", onclick: () => openTask(id) }, one(id, 60)), " "]), ids.length > 20 ? `and ${ids.length - 20} more` : "") : null);
    if (now.length) {
      const state = { order: "uses", text: "" };
      const count = h("span", { class: "count", role: "status" }), body = h("tbody");
      let rows = [], most = 50, opened = null;
      const rate = (skill) => (skill.uses ? skill.successes / skill.uses : null);
      const sorted = () => {
        rows = now.filter((skill) => !state.text || [skill.id, skill.title, skill.text, skill.when, skill.type].join(" ").toLowerCase().includes(state.text));
        const by = { uses: (a, b) => (b.uses ?? 0) - (a.uses ?? 0), success: (a, b) => (rate(b) ?? -1) - (rate(a) ?? -1), fresh: (a, b) => (b.version ?? 0) - (a.version ?? 0), title: (a, b) => String(a.title).localeCompare(String(b.title)) }[state.order];
        rows.sort(by);
        count.textContent = `${rows.length.toLocaleString("en")} of ${plural(now.length, "skill")}`;
      };
      const bar = (skill) => {
        if (!skill.uses) return h("span", { class: "none" }, "not used yet");
        const track = h("span", { class: "rate", "aria-hidden": "true" });
        if (skill.interval) { const line = h("i"); line.style.left = `${100 * skill.interval[0]}%`; line.style.width = `${100 * (skill.interval[1] - skill.interval[0])}%`; track.append(line); }
        const dot = h("b");
        dot.style.left = `${100 * rate(skill)}%`;
        track.append(dot);
        return h("span", {}, track, ` ${num(rate(skill))}`, skill.interval ? h("span", { class: "interval" }, ` [${skill.interval.map(num).join(", ")}]`) : "");
      };
      const more = (skill) => h("td", { colSpan: 6 }, h("div", { class: "text" }, block(skill.text)), skill.when ? h("p", { class: "note" }, `When: ${clip(skill.when, 600)}`) : "",
        skill.parents?.length ? h("p", { class: "note" }, "Made from: ", skill.parents.map((id) => [h("button", { class: "plain", type: "button", onclick: () => openSkill(id) }, one(id, 60)), " "])) : "",
        evidence(skill.evidence), used.has(skill.id) ? h("p", {}, h("button", { class: "plain", type: "button", onclick: () => filterSkill(skill.id) }, `${plural(used.get(skill.id), "rollout")} with it in this page`)) : "");
      const show = () => {
        body.replaceChildren(...rows.slice(0, most).flatMap((skill) => {
          const open = opened === skill.id;
          const row = h("tr", { class: open ? "open" : "" }, h("th", { scope: "row" }, h("button", { class: "plain", type: "button", "aria-expanded": String(open), onclick: () => { opened = open ? null : skill.id; show(); } }, one(skill.title || skill.id, 120)), (skill.flags || []).map((flag) => [" ", h("span", { class: "tag error", title: "what in its text looks hostile" }, clip(flag, 40))])),
            h("td", { class: "start" }, open || !skill.text ? "" : one(skill.text, 90)), h("td", {}, [skill.tier, skill.type].filter(Boolean).map((each) => clip(each, 40)).join(", ")), h("td", {}, num(skill.uses)), h("td", {}, bar(skill)), h("td", {}, `v${num(skill.version)}`));
          return open ? [row, h("tr", {}, more(skill))] : [row];
        }));
        if (rows.length > most) body.append(h("tr", {}, h("td", { colSpan: 6 }, h("button", { type: "button", onclick: () => { most += 100; show(); } }, `Show more of ${rows.length}`))));
        if (!rows.length) body.append(h("tr", {}, h("td", { colSpan: 6 }, "No skill has this in it.")));
      };
      section.append(h("h3", {}, "The bank now: what it holds, how often each skill was used, and with what success"), h("div", { class: "bar-row" },
        choice("Order", [["uses", "most used"], ["success", "highest success"], ["fresh", "newest version"], ["title", "title"]], state.order, (value) => { state.order = value; sorted(); show(); }),
        searching("Search", "title, text or type", (text) => { state.text = text; sorted(); show(); }), count),
      h("div", { class: "scroll" }, h("table", { class: "skills" }, h("thead", {}, h("tr", {}, ["Skill", "Text", "Kind", "Uses in training", "Success in training when used", "Version"].map((name) => h("th", { scope: "col", class: name === "Text" && "start" }, name)))), body)));
      sorted();
      show();
      openSkill = (id) => {
        const place = rows.findIndex((skill) => skill.id === id);
        if (place < 0) { section.scrollIntoView(); live.textContent = `${one(id, 80)} is not in the bank now: look for it in the timeline.`; return; }
        opened = id;
        most = Math.max(most, place + 10);
        show();
        [...body.querySelectorAll("tr.open")][0]?.scrollIntoView({ block: "center" });
      };
    }
    const live = h("p", { class: "note", role: "status" });
    section.append(live);
    if (versions.length) {
      const host = h("div", { class: "versions" });
      const changed = (each) => (each.changes || []).filter((change) => change.before !== change.after);
      const telling = versions.filter((each) => changed(each).length), counting = versions.length - telling.length;
      let newest = [...telling].reverse(), drawn = 0;
      const add = () => {
        host.append(...newest.slice(drawn, drawn + 40).map(version));
        drawn += 40;
        if (drawn < newest.length) { const next = h("button", { type: "button", onclick: () => { next.remove(); add(); } }, `${newest.length - drawn} older versions`); host.append(next); }
      };
      const version = (each) => {
        const kinds = new Map();
        const changes = changed(each);
        for (const change of changes) kinds.set(change.kind, (kinds.get(change.kind) ?? 0) + 1);
        const made = h("details", { ontoggle: () => {
          if (!made.open || made.children.length > 1) return;
          let count = 0;
          const body = h("div"), grow = () => {
            body.append(...changes.slice(count, count + 30).map((change) => h("div", { class: "change" }, h("span", { class: "tag" }, clip(change.kind, 30)), " ", h("button", { class: "plain", type: "button", onclick: () => openSkill(change.id) }, one(change.id, 80)), diffBlock(change.before, change.after))));
            count += 30;
            if (count < changes.length) { const next = h("button", { type: "button", onclick: () => { next.remove(); grow(); } }, `${changes.length - count} more changes`); body.append(next); }
          };
          grow();
          made.append(body, evidence(each.evidence) || "");
          if (!changes.length) body.append(empty("No text changed: only counts of use."));
        } }, h("summary", {}, h("b", {}, `Version ${num(each.version)}`), each.step === null || each.step === undefined ? "" : `, step ${num(each.step)}`, each.reason ? `: ${one(each.reason, 140)}` : "", each.writer ? h("span", { class: "tag" }, one(each.writer, 40)) : "",
          [...kinds].map(([kind, n]) => h("span", { class: "tag" }, `${n} ${clip(kind, 20)}`))));
        return made;
      };
      const rest = counting > 0 && h("button", { class: "plain", type: "button", onclick: () => {
        rest.remove();
        [newest, drawn] = [[...versions].reverse(), 0];
        host.replaceChildren();
        add();
      } }, `Show ${plural(counting, "version")} more, which only counted uses`);
      section.append(h("h3", { class: "apart" }, `Timeline: ${plural(telling.length, "version")} that changed a text, the newest first`), host, rest || "");
      add();
    }
    section.append(note(skills.left_out));
  }

  // ---- The page

  const drawings = new Map([["curves", drawCurves], ["votes", drawVotes], ["rollouts", drawRollouts], ["skills", drawSkills]]);
  const drawn = new Set();
  const heads = new Map([...drawings.keys()].map((id) => [id, byId(id).querySelector("h2")]));
  function draw(id) {
    if (drawn.has(id)) return;
    drawn.add(id);
    const section = byId(id);
    section.replaceChildren(heads.get(id));
    section.style.minHeight = "";
    try {
      drawings.get(id)(section, runs[current]);
    } catch (error) {
      console.error(error);
      section.append(empty(`This part could not be drawn: ${clip(error.message, 200)}`));
    }
  }
  const drawAll = () => { for (const id of drawings.keys()) draw(id); };
  function leftOut() {
    const run = runs[current], said = [run?.votes, run?.rollouts, run?.skills].map((each) => each?.left_out);
    byId("left-out").replaceChildren(...(run?.left_out || []).filter((text) => !said.includes(text)).map((text) => h("p", {}, clip(text, 600))));
  }
  function switchRun(index) {
    if (index === current || !runs[index]) return;
    current = index;
    const control = byId("run-choice").querySelector("select");
    if (control) control.selectedIndex = index;
    for (const id of ["votes", "rollouts", "skills"]) { drawn.delete(id); draw(id); }
    leftOut();
  }
  if (runs.length > 1) byId("run-choice").append(h("select", { "aria-label": "Run whose votes, rollouts and skills are shown", onchange: (event) => switchRun(event.target.selectedIndex) }, runs.map((run) => h("option", {}, clip(run.name, 60)))));

  const ids = runs.map(() => null);
  function find(run, id) {
    ids[run] ??= new Map((runs[run]?.rollouts?.items || []).map((item) => [item.id, item]));
    return ids[run].get(id);
  }
  function follow() {
    const [named, of] = location.hash.slice(1).split("&run=");
    const [kind, rest] = named.includes("=") ? [named.slice(0, named.indexOf("=")), named.slice(named.indexOf("=") + 1)] : ["", ""];
    if (!["rollout", "task", "skill"].includes(kind)) {
      if (drawings.has(named) || named === "warnings") { drawAll(); byId(named).scrollIntoView(); }
      return;
    }
    let id = "";
    try { id = decodeURIComponent(rest); } catch { /* not one of the page's own links */ }
    switchRun(Number.parseInt(of ?? "0", 10) || 0);
    drawAll();
    if (kind === "task") openTask(id);
    else if (kind === "skill") openSkill(id);
    else {
      const item = find(current, id);
      if (item) openRollout(item, runs[current]);
      else missing(byId("rollouts"), `This page has no rollout ${clip(id, 120)}.`, runs[current], "--episode", id);
    }
  }
  addEventListener("hashchange", follow);

  setTheme(theme);
  ranges();
  leftOut();
  for (const id of drawings.keys()) {
    const section = byId(id);
    section.style.minHeight = "20rem";
    whenSeen(section, () => draw(id));
  }
  const links = new Map([...document.querySelectorAll("#bar nav a")].map((each) => [each.hash.slice(1), each]));
  let waiting = false;
  function here() {
    waiting = false;
    let at = null;
    for (const id of links.keys()) if (byId(id).getBoundingClientRect().top < innerHeight * 0.4) at = id;
    const target = location.hash.slice(1); // near the end of the page a section cannot come to the top
    if (links.has(target) && byId(target).getBoundingClientRect().top < innerHeight && scrollY + innerHeight > document.documentElement.scrollHeight - 4) at = target;
    for (const [id, each] of links) {
      if (id !== at) each.removeAttribute("aria-current");
      else if (!each.hasAttribute("aria-current")) {
        each.setAttribute("aria-current", "true");
        each.parentElement.scrollLeft = each.offsetLeft - each.parentElement.offsetLeft - 60; // on a phone the sections do not all fit
      }
    }
  }
  addEventListener("scroll", () => { if (!waiting) { waiting = true; requestAnimationFrame(here); } }, { passive: true });
  here();
  // The open rollout goes on paper behind the chosen task: a dialog itself does not print well.
  const printed = h("div", { class: "printed" });
  addEventListener("beforeprint", () => {
    drawAll();
    for (const each of document.querySelectorAll("#curves > .charts .plot, #rollouts .card .body")) each.draw?.();
    const cards = document.querySelectorAll("#rollouts .card").length, all = runs[current]?.rollouts?.items.length ?? 0;
    printed.replaceChildren(cards ? note(`On paper: ${plural(cards, "rollout")} of the chosen task, and the open one. Left out: ${plural(all - cards, "rollout")} of the page.`) : "",
      ...(drawer.open ? [...drawer.querySelectorAll(".top code, .inside")].map((each) => each.cloneNode(true)) : []));
    byId("rollouts").append(printed);
    document.documentElement.dataset.theme = "light";
    for (const each of repaints) each();
  });
  addEventListener("afterprint", () => setTheme(theme));
  if (location.hash.length > 1) follow();
  document.documentElement.dataset.ready = "true";
})();
