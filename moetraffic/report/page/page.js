"use strict";
// Draws the figures of the page from the data that stand in it: those near the window
// at once, the others when nothing else is to be done.
(() => {
  const TYPES = {
    i1: Int8Array, u1: Uint8Array, i2: Int16Array, u2: Uint16Array,
    i4: Int32Array, u4: Uint32Array, f4: Float32Array, f8: Float64Array,
  };
  const CONFIG = {
    responsive: true, displaylogo: false, displayModeBar: window.innerWidth < 641 ? false : "hover",
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
  };
  const narrow = () => window.innerWidth < 641;
  const dark = window.matchMedia("screen and (prefers-color-scheme: dark)");
  let printing = false;

  // Colors of the page, which a style sheet has for light and dark screens.
  function theme() {
    const style = getComputedStyle(document.documentElement);
    const light = { ink: "#1b1b1b", grid: "#e9e9e9", edge: "#999", paper: "#fff" };
    return printing ? light : Object.fromEntries(
      Object.keys(light).map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
  }
  // Black marks are drawn in the color of text.
  const inked = (value, ink) => JSON.parse(JSON.stringify(value).replaceAll('"#000000"', JSON.stringify(ink)));

  // ---- data ------------------------------------------------------------------
  function bytesOf(text) {
    const raw = atob(text), bytes = new Uint8Array(raw.length);
    for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
    return bytes;
  }

  async function inflated(text) {
    const stream = new Blob([bytesOf(text)]).stream();
    const whole = stream.pipeThrough(new DecompressionStream("deflate"));
    return new Response(whole).arrayBuffer();
  }

  // A list, or Plotly's typed array: numbers in order, and the shape.
  function numbers(told) {
    if (told === undefined || told === null) return { values: [], shape: [0] };
    if (Array.isArray(told)) return { values: told, shape: [told.length] };
    const values = new TYPES[told.dtype](bytesOf(told.bdata).buffer);
    const shape = told.shape ? told.shape.split(",").map(Number) : [values.length];
    return { values, shape };
  }

  const cell = (value) => {
    if (value === null || value === undefined) return "";
    if (typeof value === "number") return Number.isFinite(value) ? String(+value.toPrecision(9)) : "";
    const text = String(value);
    return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };

  function save(name, lines) {
    const address = URL.createObjectURL(new Blob(lines, { type: "text/csv;charset=utf-8" }));
    const link = document.createElement("a");
    link.href = address;
    link.download = name;
    document.body.append(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(address), 10000);
  }

  function tableOf(data) {
    const heat = data.views.some((v) => v.traces.some((t) => t.type === "heatmap"));
    const bars = data.views.some((v) => v.traces.some((t) => t.base !== undefined));
    const ends = data.views.some((v) => v.traces.some((t) => t.error_x || t.error_y));
    const head = [...data.choices, ...(heat ? [] : ["series"]), ...data.columns];
    if (ends) head.push("x_low", "x_high", "y_low", "y_high");
    const lines = [head.map(cell).join(",") + "\n"];
    const row = (...values) => lines.push(values.map(cell).join(",") + "\n");
    const reach = (bar, at, value, side) => {
      if (!bar) return "";
      const size = numbers(side < 0 ? bar.arrayminus : bar.array).values[at];
      return size === null || size === undefined ? "" : value + side * size;
    };
    for (const view of data.views) {
      for (const trace of view.traces) {
        const x = numbers(trace.x).values, y = numbers(trace.y).values;
        if (trace.type === "heatmap") {
          const z = numbers(trace.z).values;
          for (let j = 0; j < y.length; j++)
            for (let i = 0; i < x.length; i++) row(...view.name, x[i], y[j], z[j * x.length + i]);
          continue;
        }
        const base = numbers(trace.base).values;
        for (let i = 0; i < x.length; i++) {
          const more = ends ? [
            reach(trace.error_x, i, x[i], -1), reach(trace.error_x, i, x[i], 1),
            reach(trace.error_y, i, y[i], -1), reach(trace.error_y, i, y[i], 1),
          ] : [];
          row(...view.name, trace.name.replaceAll("<br>", " "), x[i], y[i], ...(bars ? [base[i]] : []), ...more);
        }
      }
    }
    return lines;
  }

  // ---- drawing ---------------------------------------------------------------
  function mixed(base, more) {
    const out = { ...base };
    for (const [name, value] of Object.entries(more || {})) {
      const both = value && base[name] && typeof value === "object" && !Array.isArray(value);
      out[name] = both ? mixed(base[name], value) : value;
    }
    return out;
  }

  function layoutOf(more) {
    const small = narrow();
    const { ink, grid, edge, paper } = theme();
    const axis = {
      automargin: true, gridcolor: grid, zerolinecolor: edge, linecolor: edge,
      ticks: "outside", tickcolor: edge, tickfont: { size: small ? 10 : 12 },
      title: { font: { size: small ? 11 : 13 }, standoff: 8 },
    };
    return mixed({
      margin: { l: 10, r: 14, t: small ? 12 : 34, b: 10, pad: 0 },
      font: { family: "system-ui, Segoe UI, Roboto, Helvetica, Arial, sans-serif", size: small ? 11 : 13, color: ink },
      paper_bgcolor: paper, plot_bgcolor: paper,
      legend: { orientation: "h", x: 0, y: 1.02, xanchor: "left", yanchor: "bottom", font: { size: small ? 10 : 12 }, traceorder: "normal" },
      hovermode: "closest", dragmode: small ? false : "zoom",
      xaxis: { ...axis }, yaxis: { ...axis },
    }, inked(more || {}, ink));
  }

  // Long axis titles in two lines, where there is little room.
  function wrapped(layout) {
    if (!narrow()) return layout;
    for (const [axis, most] of [[layout.xaxis, 30], [layout.yaxis, 40]]) {
      const text = axis.title.text || "";
      // at the space nearest to the middle
      const spaces = [...text.matchAll(/ /g)].map((found) => found.index);
      const off = (n) => Math.abs(n - text.length / 2);
      const at = text.length > most ? spaces.reduce((best, n) => (off(n) < off(best) ? n : best), -1e3) : -1;
      if (at > 0) axis.title = { ...axis.title, text: `${text.slice(0, at)}<br>${text.slice(at + 1)}` };
    }
    return layout;
  }

  // A color bar that leaves a phone's width to what it explains.
  const slender = (trace) => (trace.colorbar ? {
    ...trace, colorbar: { ...trace.colorbar, thickness: 10, xpad: 4, tickfont: { size: 10 } },
  } : trace);

  // Lines faint, and over each its moving mean.
  function smoothed(traces, width) {
    if (width < 2) return traces;
    const faint = [], thick = [];
    for (const trace of traces) {
      if (trace.type !== "scatter" || trace.fill || trace.meta === "floor" || trace.line.width === 0) {
        faint.push(trace);
        continue;
      }
      const { values } = numbers(trace.y);
      const mean = new Float64Array(values.length).fill(NaN);
      const half = Math.floor(width / 2);
      for (let i = 0; i < values.length; i++) {
        let sum = 0, count = 0;
        for (let j = Math.max(0, i - half); j <= Math.min(values.length - 1, i + half); j++)
          if (Number.isFinite(values[j])) { sum += values[j]; count += 1; }
        if (count) mean[i] = sum / count;
      }
      faint.push({ ...trace, showlegend: false, opacity: 0.35, line: { ...trace.line, width: 0.8 }, hoverinfo: "skip" });
      thick.push({ ...trace, y: mean, line: { ...trace.line, width: 2 } });
    }
    return [...faint, ...thick];
  }

  function option(parent, label, values) {
    const box = document.createElement("label");
    const select = document.createElement("select");
    box.append(label, select);
    for (const value of values) select.add(new Option(value, value));
    parent.append(box);
    return select;
  }

  function download(card, text, action) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = text;
    button.addEventListener("click", action);
    card.querySelector(".downloads").append(button);
  }

  // Numbers in the cells of a heatmap, where they fit.
  function labeled(trace, plot) {
    if (trace.type !== "heatmap") return trace;
    const rows = numbers(trace.y).values.length, columns = numbers(trace.x).values.length;
    const fits = (plot.clientWidth - 150) / columns >= 40 && (plot.clientHeight - 90) / rows >= 15;
    return fits ? { ...trace, texttemplate: trace.digits || "%{z:.3~s}", textfont: { size: 11 } } : trace;
  }

  // A mark in the color of text, also in a dark page.
  function visible(trace, ink) {
    const black = (part) => (part && part.color === "#000000" ? { ...part, color: ink } : part);
    return { ...trace, ...(trace.line ? { line: black(trace.line) } : {}), ...(trace.marker ? { marker: black(trace.marker) } : {}) };
  }

  const plots = new Map();

  function show(card, traces, layout) {
    const plot = card.querySelector(".plot");
    plots.set(plot, () => show(card, traces, layout));
    const { ink } = theme();
    let drawn = traces.map((trace) => labeled(visible(trace, ink), plot));
    if (narrow()) drawn = drawn.map(slender);
    const config = plot.clientWidth < 700 ? { ...CONFIG, displayModeBar: false } : CONFIG;
    return Plotly.react(plot, drawn, wrapped(layoutOf(layout)), config);
  }
  const redraw = () => Promise.all([...plots.values()].map((draw) => draw()));
  dark.addEventListener("change", redraw);

  function chart(card, data) {
    const controls = card.querySelector(".controls");
    const aside = card.querySelector(".aside");
    const selects = data.choices.map((label, at) => {
      const values = [...new Set(data.views.map((v) => v.name[at]))];
      return option(controls, label, values);
    });
    selects.forEach((s) => { s.parentElement.hidden = s.options.length < 2; });
    const draw = () => {
      const wanted = selects.map((s) => s.value);
      // the view that agrees in most of its parts, the first ones before the others
      const agreeing = (v) => v.name.reduce((n, part, at) => n + (part === wanted[at] ? 2 ** (8 - at) : 0), 0);
      const view = data.views.reduce((best, v) => (agreeing(v) > agreeing(best) ? v : best));
      selects.forEach((s, at) => { s.value = view.name[at]; });
      aside.textContent = view.aside;
      return show(card, smoothed(view.traces, view.smooth), view.layout);
    };
    selects.forEach((s) => s.addEventListener("change", draw));
    download(card, "Download the data (CSV)", () => save(`${data.key}.csv`, tableOf(data)));
    return draw();
  }

  // ---- matrices --------------------------------------------------------------
  function matrices(card, data) {
    const blocks = data.blocks, cache = new Map();
    const controls = card.querySelector(".controls");
    const aside = card.querySelector(".aside");
    const groups = new Set(blocks.map((b) => b.group)).size > 1;
    const where = (b) => `${b.layer}${groups ? `, ranks ${b.group}` : ""}`;
    const what = (b) => (b.of === "demand" ? "demand" : `wire: ${b.phase}`);
    const layer = option(controls, "layer", [...new Set(blocks.map(where))]);
    const kind = option(controls, "quantity", [...new Set(blocks.map(what))]);
    layer.parentElement.hidden = layer.options.length < 2;
    const box = document.createElement("label");
    box.className = "slider";
    const slider = document.createElement("input");
    slider.type = "range";
    slider.min = 0;
    slider.value = 0;
    slider.setAttribute("aria-label", "iteration");
    const told = document.createElement("output");
    const play = document.createElement("button");
    play.type = "button";
    play.textContent = "▶ play";
    box.append("iteration", slider, told);
    const same = document.createElement("label");
    const fixed = document.createElement("input");
    fixed.type = "checkbox";
    fixed.checked = true;
    same.append(fixed, "one color scale for all iterations");
    controls.append(box, play, same);

    // [count, rows, columns] of a block in its own unit, as float64
    function valuesOf(block) {
      if (!cache.has(block.id)) cache.set(block.id, made(block));
      return cache.get(block.id);
    }
    const made = async (block) => new TYPES[block.dtype](await inflated(block.data));

    let turn = 0;
    const current = () => blocks.find((b) => where(b) === layer.value && what(b) === kind.value)
      || blocks.find((b) => where(b) === layer.value);
    const matrixAt = (cells, block, n) => {
      const wide = block.columns.length, size = block.rows.length * wide;
      const out = [];
      for (let i = 0; i < block.rows.length; i++)
        out.push(Float64Array.from(cells.subarray(n * size + i * wide, n * size + (i + 1) * wide), (v) => v * block.factor));
      return out;
    };

    // ticks at whole numbers, all of them where they fit
    const steps = (list) => ({ tick0: 0, dtick: Math.max(1, Math.ceil(list.length / 16)) });

    async function draw() {
      const mine = ++turn, block = current();
      kind.value = what(block);
      slider.max = block.count - 1;
      const n = Math.min(Number(slider.value), block.count - 1);
      const iteration = block.iterations[n];
      told.textContent = String(iteration);
      const cells = await valuesOf(block);
      if (mine !== turn) return;
      const z = matrixAt(cells, block, n);
      let top = 0, sum = 0, most = 0;
      if (block.top === undefined) {
        for (const v of cells) if (v > top) top = v;
        block.top = top * block.factor;
      }
      for (const line of z) for (const v of line) { sum += v; if (v > most) most = v; }
      const bytes = block.unit === "bytes", column = block.of === "demand" ? "expert" : "receiving rank";
      aside.textContent = `${what(block)}, layer ${where(block)}, iteration ${iteration}: ${sum.toLocaleString("en")} ${block.unit} in all, ${most.toLocaleString("en")} in the largest cell.`;
      card.dataset.iteration = iteration;
      const name = (list) => list.map((t) => (/^\d+$/.test(t) ? Number(t) : t));
      await show(card, [{
        type: "heatmap", z, x: name(block.columns), y: name(block.rows), colorscale: "Viridis",
        zmin: 0, zmax: (fixed.checked ? block.top : most) || 1,
        colorbar: { title: { text: bytes ? "bytes [B]" : "token copies", side: "right", font: { size: 12 } }, tickformat: "~s", thickness: narrow() ? 10 : 20 },
        hovertemplate: `from rank %{y} to ${block.of === "demand" ? "expert" : "rank"} %{x}<br>%{z:,} ${block.unit}<extra></extra>`,
      }], {
        xaxis: { title: { text: column }, ...steps(block.columns) },
        yaxis: { title: { text: "sending rank" }, autorange: "reversed", ...steps(block.rows) },
      });
    }

    let timer = 0;
    const stop = () => { clearInterval(timer); timer = 0; play.textContent = "▶ play"; };
    play.addEventListener("click", () => {
      if (timer) { stop(); return; }
      play.textContent = "❚❚ pause";
      timer = setInterval(() => {
        if (Number(slider.value) >= Number(slider.max)) { stop(); return; }
        slider.value = Number(slider.value) + Math.max(1, Math.round(slider.max / 200));
        draw();
      }, 120);
    });
    slider.addEventListener("input", draw);
    fixed.addEventListener("change", draw);
    layer.addEventListener("change", draw);
    kind.addEventListener("change", draw);

    const lines = (block, cells, which) => {
      const out = [];
      for (const n of which) {
        const z = matrixAt(cells, block, n);
        for (let i = 0; i < z.length; i++)
          for (let j = 0; j < z[i].length; j++)
            out.push([block.iterations[n], block.rows[i], block.columns[j], z[i][j]].map(cell).join(",") + "\n");
      }
      return out;
    };
    const export_ = (all) => async () => {
      const block = current(), cells = await valuesOf(block);
      const which = all ? block.iterations.keys() : [Math.min(Number(slider.value), block.count - 1)];
      const to = block.of === "demand" ? "expert" : "receiving_rank";
      const unit = block.unit.replace(" ", "_");
      const name = `layer-${block.layer}-${block.of}${block.phase ? "-" + block.phase : ""}`;
      save(`${name}${all ? "" : "-iteration-" + told.textContent}.csv`, [`iteration,sending_rank,${to},${unit}\n`, ...lines(block, cells, which)]);
    };
    download(card, "Download this matrix (CSV)", export_(false));
    download(card, "Download all its iterations (CSV)", export_(true));
    return draw();
  }

  // ---- the page --------------------------------------------------------------
  const DRAWERS = { chart, matrices };
  const waiting = new Set(document.querySelectorAll(".figure"));

  // Plotly's script is run after words and tables have been shown.
  const plotly = new Promise((done) => {
    requestAnimationFrame(() => setTimeout(async () => {
      const script = document.createElement("script");
      const packed = await inflated(document.getElementById("plotly").textContent);
      script.textContent = new TextDecoder().decode(packed);
      document.head.append(script);
      done();
    }));
  });

  async function wake(card) {
    if (!waiting.delete(card)) return;
    watcher.unobserve(card);
    try {
      await plotly;
      const data = JSON.parse(card.querySelector("script").textContent);
      await DRAWERS[card.dataset.kind](card, data);
      card.dataset.drawn = "yes";
    } catch (error) {
      card.querySelector(".aside").textContent = `This browser cannot draw the figure: ${error.message}`;
      console.error(error);
    }
  }

  const watcher = new IntersectionObserver((seen) => {
    for (const each of seen) if (each.isIntersecting) wake(each.target);
  }, { rootMargin: "250px" });
  waiting.forEach((card) => watcher.observe(card));

  // What is out of view is drawn when nothing else is to be done: print has it then.
  const idle = window.requestIdleCallback || ((action) => setTimeout(action, 200));
  const next = async () => {
    const [card] = waiting;
    if (card) { await wake(card); idle(next); }
  };
  window.addEventListener("load", () => setTimeout(() => idle(next), 500));

  for (const card of document.querySelectorAll(".listed")) {
    const lines = [...card.querySelectorAll("tr")].map(
      (row) => [...row.children].map((c) => cell(c.textContent)).join(",") + "\n");
    download(card, "Download the table (CSV)", () => save(`${card.id.replace("figure-", "")}.csv`, lines));
  }

  window.addEventListener("beforeprint", () => {
    printing = true;
    redraw();
    for (const plot of plots.keys()) Plotly.relayout(plot, { width: Math.min(plot.clientWidth, 680), autosize: false });
  });
  window.addEventListener("afterprint", () => {
    printing = false;
    redraw();
    for (const plot of plots.keys()) Plotly.relayout(plot, { width: undefined, autosize: true });
  });

  // The section in view is marked in the navigation.
  const links = new Map([...document.querySelectorAll("nav a")].map((a) => [a.hash.slice(1), a]));
  const marker = new IntersectionObserver((seen) => {
    for (const { target, isIntersecting } of seen) {
      if (!isIntersecting) continue;
      links.forEach((link, key) => {
        if (key === target.id) link.setAttribute("aria-current", "true");
        else link.removeAttribute("aria-current");
      });
    }
  }, { rootMargin: "-60px 0px -75% 0px" });
  document.querySelectorAll("main section").forEach((section) => marker.observe(section));
})();
