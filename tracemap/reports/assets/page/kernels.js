// The kernels tab: final IR, ops, machine code and its loops, linked with each other.
// A block keeps its names (event, open, row …) private.
if (data.kernels.length) {
  let kernel = null;
  let event = "";
  let members = null; // ops of the selected dispatch site; null: of all sites
  let rankOf = new Map(); // the rank of each shown op by its cost
  const NOTHING = { lines: new Set(), line: 0, loop: -1, ops: [] };
  let chosen = NOTHING;

  const shown = (list) => (members ? list.filter((op) => members.has(op)) : list);
  const opsOf = (line) => shown(kernel.ops[line] ?? []);
  const seen = (line) => kernel.seen[event]?.[line] ?? 0;
  const seenAt = (number) => kernel.seenAt[event]?.[number] ?? 0;

  const isEstimate = () => event && !data.metrics.some(({ name }) => name === event);

  // A part of what was seen in the kernel, in percent.
  const partCell = (value, name = "b") => {
    const cell = make(name, name === "td" ? "num" : "v", value ? share(value, kernel.total[event]) : "");
    if (value) cell.title = (isEstimate() ? "" : value + " in all, ") + share(value, kernel.total[event]) + " of the kernel's " + event;
    return cell;
  };

  // Colours of ops: the most expensive ops of the kernel have their own.
  const BANDS = 7;
  const HEAT_MOST = 66; // percent of the heat colour, so that text stays readable
  const bandOf = (op) => "var(--scope-" + Math.min(BANDS, rankOf.get(op) ?? BANDS) + ")";

  function paintBand(element, list) {
    if (!list.length) return;
    const colours = [...new Set(list.map(bandOf))];
    element.classList.add("banded");
    element.style.setProperty("--band", colours[0]);
    const stops = colours.map((colour, at) => colour + " " + (100 * at) / colours.length + "% " + (100 * (at + 1)) / colours.length + "%");
    element.style.setProperty("--bands", stops.join(", "));
  }

  // `line`: line of the final IR; 0: none.
  function row(line, value, name, origin, text) {
    const mark = line > 0 && line === chosen.line ? " selected" : chosen.lines.has(line) ? " related" : "";
    const place = make("span", "kg", make("b", "n", name), partCell(value), origin);
    const element = make("div", "kr" + mark, place, make("code", "", text));
    paintBand(element, opsOf(line));
    const total = kernel.total[event];
    if (value && total) element.style.setProperty("--heat-share", Math.round((HEAT_MOST * value) / total) + "%");
    return element;
  }

  function drawLine(number) {
    const line = number + 1;
    const list = opsOf(line);
    const origin = make("b", "o", list.slice(0, 2).join(" ") + (list.length > 2 ? " …" : ""));
    if (list.length) origin.title = list.map((op) => op + " " + described(op)).join("\n");
    const drawn = row(line, seen(line), String(line), origin, kernel.lines[number]);
    drawn.classList.toggle("noted", kernel.noted.has(line));
    return drawn;
  }

  function drawInstruction(number) {
    const [address, line, text] = kernel.code[number];
    const depth = kernel.depthAt(number);
    const origin = make("b", "o", line ? String(line) : "–", make("span", "depth", "▏".repeat(depth)));
    origin.title = (line ? "line " + line + " of the final IR" : "no line of the final IR") + (depth ? ", in " + plural(depth, "loop") : "");
    return row(line, seenAt(number), address, origin, text);
  }

  // Selection

  const linesOfOp = (op) => kernel.linesOf.get(op) ?? [];

  function choose(next, reveal) {
    chosen = { ...NOTHING, ...next };
    const most = [...chosen.lines].reduce((best, line) => (best && seen(best) >= seen(line) ? best : line), chosen.line);
    if (reveal !== "ir" && most > 0) ir.reveal(most - 1);
    const at = chosen.loop >= 0 ? kernel.loops[chosen.loop].at : hottest();
    if (reveal !== "code" && at >= 0) code.reveal(at);
    paintRows();
    markSide();
    paintRemarks();
  }

  // The selected lines' instruction with most samples; without samples, the first one in the innermost loops.
  function hottest(isWanted = (line) => line === chosen.line || chosen.lines.has(line)) {
    let best = -1;
    const rank = (number) => seenAt(number) || kernel.depthAt(number) / 1e6;
    kernel.code.forEach(([, line], number) => {
      if (!isWanted(line)) return;
      if (line > 0 && (best < 0 || rank(number) > rank(best))) best = number;
    });
    return best;
  }

  const chooseLine = (line, reveal) => choose({ line, ops: opsOf(line) }, reveal);
  const chooseOp = (op) => choose({ ops: [op], lines: new Set(linesOfOp(op)) });
  const chooseLoop = (loop) => choose({ loop, ops: kernel.loops[loop].ops, lines: new Set(kernel.loops[loop].lines) });

  const ir = new Rows(byId("kernel-ir"), drawLine, (number) => chooseLine(number + 1, "ir"));
  const code = new Rows(byId("kernel-code"), drawInstruction, (number) => {
    const line = kernel.code[number][1];
    if (line) chooseLine(line, "code");
  });

  function paintRows() {
    const of = kernel.sites.reduce((sum, name) => sum + (costOf(sites.get(name))?.total ?? 0), 0);
    const words = !measured ? "" : kernel.measured ? amount(of, chosenMetric()) + ", " + share(of, chosenMetric().work) : kernel.atLoad ? "load time, not measured" : "not executed";
    byId("kernel-cost").textContent = words;
    byId("kernel-basis").textContent = measured ? basisOf(chosenMetric()) : "";
    ir.paint();
    code.paint();
  }

  // Ops and loops

  const lineText = (op) => (ops.has(op) ? sourceOf(ops.get(op))[0] : "");
  const described = (op) => (ops.has(op) ? ops.get(op).name + " " + lineText(op) : "");

  const shownSites = () => (members ? [byId("kernel-site").value] : kernel.sites);

  // The cost of an op in these dispatches of the kernel; null without a run.
  function costInKernel(op, names) {
    if (!measured) return null;
    let sum = null;
    for (const name of names) {
      for (const member of sites.get(name)?.members ?? []) {
        if (member.op === op && member.attributed.length) sum = (sum ?? 0) + member.attributed[metric];
      }
    }
    return sum;
  }

  function paintOps() {
    const names = shownSites();
    const whole = names.reduce((sum, name) => sum + (costOf(sites.get(name))?.total ?? 0), 0);
    const rows = shown(kernel.all).map((op) => {
      const button = makeButton(op + " " + (ops.has(op) ? titleOf(ops.get(op)) : ""), () => chooseOp(op));
      button.dataset.op = op;
      const swatch = make("td", "band", make("i"));
      swatch.style.setProperty("--band", bandOf(op));
      const sum = costInKernel(op, names);
      const costs = measured ? [amountCell(sum), make("td", "num", isKnown(sum) ? share(sum, whole) : "–")] : [];
      return make("tr", "", swatch, make("td", "", button, " ", link(lineText(op), op)), ...costs);
    });
    const costHeads = measured ? [["cost", "num", "What the op gets of the kernel's cost in the dispatch"], ["%", "num", "Of the kernel's cost"]] : [];
    const head = headRow(["", "", "Colour of the op's lines and instructions"], ["op", "", "Click to mark the op's lines and instructions; its line is below"], ...costHeads);
    byId("kernel-ops").replaceChildren(rows.length ? make("table", "", head, make("tbody", "", ...rows)) : make("p", "facts", "No op of the model is in this kernel."));
  }

  function paintLoops() {
    const counted = Object.keys(kernel.seenAt[event] ?? {}).length > 0;
    const rows = kernel.loops.map((loop, number) => {
      const own = shown(loop.ops);
      const more = own.length > 4 ? " and " + (own.length - 4) + " more" : "";
      const words = own.length ? own.slice(0, 4).map((op) => op + " " + (ops.has(op) ? titleOf(ops.get(op)) : "")).join(", ") + more : "no op";
      const button = makeButton("loop at " + kernel.code[loop.at][0] + ", " + loop.instructions + " instructions: " + words, () => chooseLoop(number));
      button.dataset.loop = number;
      const cell = make("td", "", button);
      cell.style.paddingLeft = kernel.depth[number] * 14 + "px";
      const inside = loop.ranges.reduce((sum, [first, last]) => sum + kernel.sumAt(event, first, last), 0);
      return make("tr", "", cell, ...(counted ? [partCell(inside, "td")] : []));
    });
    const head = headRow(["loop", "", "Address of its first instruction, instructions, and ops; inner loops are indented"], ...(counted ? [["%", "num", "Of the kernel's samples or counts, with inner loops"]] : []));
    byId("kernel-loops").replaceChildren(rows.length ? make("table", "", head, make("tbody", "", ...rows)) : make("p", "facts", kernel.noCode || "No loops."));
  }

  function paintSide() {
    paintOps();
    paintLoops();
  }

  // Compiler remarks on the selected lines; on all lines without a selection.
  function paintRemarks() {
    const isShown = (line) => (!chosen.line && !chosen.lines.size) || line === chosen.line || chosen.lines.has(line);
    const list = make("ul", "remarks");
    for (const [line, pass, count, text] of kernel.remarks.filter(([line]) => isShown(line))) {
      const words = pass + ": " + text + (count > 1 ? " (" + count + " times)" : "");
      list.append(make("li", "", line ? makeButton("line " + line, () => chooseLine(line)) : "", " " + words));
    }
    const none = kernel.remarks.length ? "No remarks on the selected lines." : "No remarks recorded. Build with --remarks.";
    byId("kernel-remarks").replaceChildren(list.childElementCount ? list : make("p", "facts", none));
  }

  function markSide() {
    for (const button of document.querySelectorAll(".side button.on")) button.classList.remove("on");
    for (const op of chosen.ops) document.querySelector('.side [data-op="' + op + '"]')?.classList.add("on");
    document.querySelector('.side [data-loop="' + chosen.loop + '"]')?.classList.add("on");
  }

  // Kernels and events

  // Adds indices and sums to a kernel, once.
  function prepare(entry) {
    if (entry.total) return entry;
    entry.linesOf = new Map();
    for (const [line, list] of Object.entries(entry.ops)) {
      for (const op of list) {
        if (!entry.linesOf.has(op)) entry.linesOf.set(op, []);
        entry.linesOf.get(op).push(Number(line));
      }
    }
    entry.all = [...entry.linesOf.keys()];
    entry.total = {};
    for (const [name, lines] of Object.entries(entry.seen)) {
      entry.total[name] = Object.values(lines).reduce((sum, value) => sum + value, 0);
    }
    const depths = new Uint8Array(entry.code.length);
    for (const loop of entry.loops) for (const [first, last] of loop.ranges) for (let at = first; at < last; at++) depths[at]++;
    entry.depthAt = (number) => depths[number];
    entry.sumAt = (name, first, last) => {
      let sum = 0;
      for (let at = first; at < last; at++) sum += entry.seenAt[name]?.[at] ?? 0;
      return sum;
    };
    entry.measured = entry.sites.some((name) => costOf(sites.get(name)));
    entry.atLoad = entry.sites.length > 0 && entry.sites.every((name) => sites.get(name)?.load_time);
    entry.noted = new Set(entry.remarks.map(([line]) => line));
    entry.depth = [];
    entry.loops.forEach((loop, number) => (entry.depth[number] = loop.parent < 0 ? 0 : entry.depth[loop.parent] + 1));
    return entry;
  }

  const widest = (rows) => rows.reduce((most, text) => Math.max(most, text.length), 20);

  // Dispatch sites that share a kernel have the same lines of IR, with ops of their own.
  function showSite(name) {
    const site = sites.get(name);
    members = site ? new Set(site.members.map((member) => member.op)) : null;
    byId("kernel-site").value = name;
    const costs = new Map(kernel.all.map((op) => [op, costInKernel(op, shownSites()) ?? 0]));
    kernel.all.sort((a, b) => costs.get(b) - costs.get(a) || Number(a.slice(2)) - Number(b.slice(2)));
    rankOf = new Map(shown(kernel.all).map((op, at) => [op, at]));
  }

  function open(index) {
    kernel = prepare(data.kernels[index]);
    nameKernels();
    const events = Object.keys(kernel.seen);
    byId("kernel-event").replaceChildren(...events.map((name) => new Option(name)));
    byId("kernel-event").disabled = !events.length;
    event = events.includes(event) ? event : events[0] ?? "";
    if (event) byId("kernel-event").value = event;
    byId("kernel-site").replaceChildren(...[...kernel.sites, "all"].map((name) => new Option(name)));
    showSite(kernel.sites[0] ?? "all");
    byId("kernel-note").textContent = kernel.noCode ? "Machine code: " + kernel.noCode + "." : isEstimate() ? "The run has no samples in this kernel; record with --sample to measure instructions." : "";
    chosen = NOTHING;
    ir.set(kernel.lines.length, widest(kernel.lines));
    code.set(kernel.code.length, widest(kernel.code.map(([, , text]) => text)));
    byId("kernel-pane-code").classList.toggle("uncounted", !kernel.seenAt[event]);
    const most = hottest(() => true);
    if (most >= 0) code.reveal(most);
    paintRows();
    paintSide();
    paintRemarks();
  }

  function follow() {
    const match = /^kernel(\d+)(?:L(\d+)|-(op\d+))?$/.exec(named());
    if (!match || !data.kernels[match[1]]) return;
    open(Number(match[1]));
    requestAnimationFrame(() => {
      if (match[2]) chooseLine(Number(match[2]));
      else if (match[3]) chooseOpAtItsSite(match[3]);
      else paintRows();
    });
  }

  function chooseOpAtItsSite(op) {
    showSite(kernel.sites.find((name) => sites.get(name)?.members.some((member) => member.op === op)) ?? "all");
    paintSide();
    chooseOp(op);
  }

  // The kernels by falling cost of the metric; those that run only at load time come last.
  function nameKernels() {
    const rows = data.kernels.map(({ name, sites: ids }, index) => {
      const costs = ids.map((id) => costOf(sites.get(id))).filter(Boolean);
      const atLoad = ids.length > 0 && ids.every((id) => sites.get(id)?.load_time);
      return { name, index, atLoad, known: costs.length > 0, cost: costs.reduce((sum, { total }) => sum + total, 0) };
    });
    rows.sort((a, b) => a.atLoad - b.atLoad || b.cost - a.cost || a.index - b.index);
    const words = ({ name, atLoad, known, cost }) => (!measured ? name : atLoad ? "load time · " + name : known ? share(cost, chosenMetric().work) + " · " + name : "not executed · " + name);
    byId("kernel").replaceChildren(...rows.map((entry) => new Option(words(entry), entry.index)));
    byId("kernel").value = String(data.kernels.indexOf(kernel));
  }

  byId("kernel").addEventListener("change", (change) => (location.hash = "kernel" + change.target.value));
  byId("kernel-site").addEventListener("change", (change) => {
    showSite(change.target.value);
    paintSide();
    choose({ ops: [] });
  });
  function repaintKernel() {
    nameKernels();
    paintRows();
    paintSide();
    markSide();
  }

  byId("kernel-event").addEventListener("change", (change) => {
    event = change.target.value;
    repaintKernel();
  });
  addEventListener("basis", repaintKernel);
  addEventListener("hashchange", follow);
  byId("kernels").addEventListener("show", paintRows);
  addEventListener("resize", paintRows);
  splitPanes(document.querySelector(".kernel-grid"));
  open(0);
  follow();
}
