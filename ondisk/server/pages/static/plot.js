// Draws the points that the server sends, and asks for others when somebody zooms.
"use strict";
(() => {
  const place = document.getElementById("plot");
  if (!place) return;
  const status = document.getElementById("plotted");
  const numbers = document.getElementById("numbers"), pointed = document.getElementById("pointed");
  const HEIGHT = 380;
  const EXPANDED = 2; // uPlot: where a line is broken, it stays so up to its next point
  const LIGHT = ["#0b7285", "#d9480f", "#5f3dc4", "#2b8a3e"], DARK = ["#66d9e8", "#ffa94d", "#b197fc", "#8ce99a"];
  const DASHES = [[], [8, 4], [2, 3]], BORDERS = ["solid", "dashed", "dotted"];
  const isDark = matchMedia("(prefers-color-scheme: dark)");
  // From the years down to fractions of a second: how the time axis says it.
  const DAY = 86400, TIMES = [
    [365 * DAY, "{YYYY}"], [28 * DAY, "{YYYY}-{MM}"], [DAY, "{MM}-{DD}", "\n{YYYY}"],
    [60, "{HH}:{mm}", "\n{YYYY}-{MM}-{DD}", "\n{MM}-{DD}"], [1, "{HH}:{mm}:{ss}", "\n{YYYY}-{MM}-{DD}", "\n{MM}-{DD}"],
    [0.001, "{ss}.{fff}", "\n{YYYY}-{MM}-{DD} {HH}:{mm}", "\n{MM}-{DD} {HH}:{mm}", null, "\n{HH}:{mm}"],
  ].map(([step, text, year = null, day = null, hour = null, minute = null]) => [step, text, year, null, day, hour, minute, null, 1]);
  const here = new URLSearchParams(location.search);
  let span = { begin: here.get("begin"), end: here.get("end") };
  let shown = null, drawn = null, running = null;

  const color = (at) => (isDark.matches ? DARK : LIGHT)[at % LIGHT.length];
  const kind = (at) => Math.floor(at / LIGHT.length) % DASHES.length;
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const time = (seconds) => new Date(seconds * 1000).toISOString().replace("T", " ").replace(/(:00)?\.000Z$/, "").replace("Z", "");
  const number = (value) => value === null ? "–" : Number(value.toPrecision(6)).toLocaleString("en", { maximumFractionDigits: 6 });

  async function load() {
    if (running) running.abort();
    running = new AbortController();
    const address = new URL(place.dataset.points, location.href);
    address.searchParams.set("width", Math.max(200, Math.round(place.clientWidth)));
    for (const key of ["begin", "end"]) if (span[key] !== null) address.searchParams.set(key, span[key]);
    place.setAttribute("aria-busy", "true");
    status.textContent = "Reading the data…";
    try {
      const answer = await fetch(address, { signal: running.signal, headers: { accept: "application/json" } });
      const found = await answer.json();
      if (!answer.ok) throw new Error(`${found.error.message} ${found.error.hint}`);
      show(found);
    } catch (error) {
      if (error.name === "AbortError") return;
      status.textContent = error.message;
    }
    place.removeAttribute("aria-busy");
  }

  function show(found) {
    if (drawn) { drawn.destroy(); drawn = null; }
    pointed.textContent = "Point at the plot to read its numbers.";
    shown = found.count ? found : shown;
    document.getElementById("zoom").hidden = pointed.hidden = !shown;
    tell(found);
    if (found.count && found.series.length) draw(found);
  }

  function tell(found) {
    const lines = found.series.reduce((sum, each) => sum + each.count, 0);
    const end = (seconds) => time(found.end - found.begin > 1000 ? Math.round(seconds) : seconds);
    let text = found.count ? `${lines.toLocaleString("en")} numbers from ${end(found.begin)} to ${end(found.end)} UTC.` : "No datum matches.";
    if (found.count && !found.series.length) text = "No datum that matches has this number.";
    if (found.reduced) text += " Where several are at one place, the line is their mean, in a band from the lowest to the highest.";
    if (found.others) text += ` ${found.others} more lines are not drawn, only listed: select some by a condition.`;
    status.textContent = text;
    numbers.hidden = !found.series.length;
    const body = numbers.querySelector("tbody"), heads = numbers.querySelectorAll("thead th");
    body.replaceChildren(...found.series.map((each, at) => {
      const row = document.createElement("tr");
      const cells = [each.label, each.count.toLocaleString("en"), number(each.lowest[0]), time(each.lowest[1]), number(each.mean), number(each.highest[0]), time(each.highest[1])];
      cells.forEach((text, column) => {
        const cell = document.createElement(column ? "td" : "th");
        if (!column) cell.scope = "row";
        if (!column && each.x) {
          const mark = document.createElement("i");
          mark.className = "mark";
          mark.style.borderTop = `3px ${BORDERS[kind(at)]} ${color(at)}`;
          cell.append(mark);
        } else if ([1, 2, 4, 5].includes(column)) cell.className = "n";
        cell.append(text);
        if (column) cell.dataset.label = heads[column].textContent;
        row.append(cell);
      });
      // Colours are not enough to find a line: the one of the row that has the focus or the pointer is emphasized.
      if (!each.x) return row;
      row.tabIndex = 0;
      const emphasize = (on) => drawn && drawn.setSeries(on ? 1 + at * (found.reduced ? 3 : 1) : null, { focus: on });
      for (const event of ["focus", "mouseenter"]) row.addEventListener(event, () => emphasize(true));
      for (const event of ["blur", "mouseleave"]) row.addEventListener(event, () => emphasize(false));
      return row;
    }));
  }

  // A line is broken where data are missing: where a step is much longer than most of its steps.
  function broken([x, ...lines]) {
    const steps = x.slice(1).map((at, before) => at - x[before]);
    const usual = [...steps].sort((a, b) => a - b)[Math.floor(steps.length / 2)];
    const whole = [[], ...lines.map(() => [])];
    x.forEach((at, place) => {
      if (place && steps[place - 1] > 4 * usual) {
        whole[0].push(x[place - 1] + usual);
        lines.forEach((_, line) => whole[line + 1].push(null));
      }
      whole[0].push(at);
      lines.forEach((line, number) => whole[number + 1].push(line[place]));
    });
    return whole;
  }

  function draw(found) {
    const tables = [], series = [{}], bands = [];
    found.series.filter((each) => each.x).forEach((each, at) => {
      const line = { label: each.label, stroke: color(at), width: 1.5, dash: DASHES[kind(at)], points: { show: each.x.length === 1 ? true : undefined } };
      if (found.reduced) {
        tables.push(broken([each.x, each.y, each.max, each.min]));
        series.push(line, { label: "highest", stroke: "transparent", points: { show: false } }, { label: "lowest", stroke: "transparent", points: { show: false } });
        bands.push({ series: [series.length - 2, series.length - 1], fill: color(at) + "33" });
      } else {
        tables.push(broken([each.x, each.y]));
        series.push(line);
      }
    });
    const axis = { stroke: style("--ink"), grid: { stroke: style("--line"), width: 1 }, ticks: { stroke: style("--line"), width: 1 } };
    drawn = new uPlot({
      width: place.clientWidth,
      height: HEIGHT,
      tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
      series, bands,
      axes: [{ ...axis, values: TIMES }, { ...axis, label: place.dataset.title, size: 60 }],
      scales: { x: { range: [found.begin, found.end > found.begin ? found.end : found.begin + 1] } },
      legend: { show: false },
      focus: { alpha: 0.15 },
      cursor: { drag: { x: true, y: false, setScale: false } },
      hooks: {
        setCursor: [(plot) => {
          const at = plot.cursor.idx;
          if (at === null || at === undefined) return;
          const read = series.slice(1).map((line, place) => [line.label, plot.data[place + 1][at]]).filter(([, value]) => value !== null && value !== undefined);
          if (read.length) pointed.textContent = `${time(plot.data[0][at])} UTC: ${read.map(([label, value]) => `${label}: ${number(value)}`).join(", ")}`;
        }],
        setSelect: [(plot) => {
          if (plot.select.width < 4) return;
          const at = (pixels) => plot.posToVal(pixels, "x");
          zoom(at(plot.select.left), at(plot.select.left + plot.select.width));
        }],
      },
    }, uPlot.join(tables, tables.map((table) => table.map(() => EXPANDED))), place);
    place.dataset.drawn = String(found.series.reduce((sum, { x = [] }) => sum + x.length, 0));
  }

  function zoom(begin, end) {
    span = begin === null ? { begin: null, end: null } : { begin: begin.toFixed(3), end: end.toFixed(3) };
    const address = new URL(location.href);
    for (const key of ["begin", "end"]) {
      if (span[key] === null) address.searchParams.delete(key); else address.searchParams.set(key, span[key]);
    }
    history.replaceState(null, "", address);
    load();
  }

  for (const button of document.querySelectorAll("[data-zoom]")) {
    button.addEventListener("click", () => {
      const { begin, end } = span.begin === null ? shown : { begin: Number(span.begin), end: Number(span.end) };
      const length = Math.max(end - begin, 0.001), middle = begin + length / 2;
      const spans = {
        in: [middle - length / 4, middle + length / 4],
        out: [middle - length, middle + length],
        earlier: [begin - length / 2, end - length / 2],
        later: [begin + length / 2, end + length / 2],
        all: [null, null],
      };
      zoom(...spans[button.dataset.zoom]);
    });
  }
  addEventListener("resize", () => { if (drawn) drawn.setSize({ width: place.clientWidth, height: HEIGHT }); });
  isDark.addEventListener("change", () => { if (shown) show(shown); });
  load();
})();
