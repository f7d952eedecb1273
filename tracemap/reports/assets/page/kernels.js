// The kernels tab: final IR, ops, machine code and its loops, linked with each other.
// A block keeps its names (event, open, row …) private.
if (data.kernels.length) {
  let kernel = null;
  let event = "";
  let members = null; // ops of the selected dispatch site; null: of all sites
  const NOTHING = { lines: new Set(), line: 0, loop: -1, ops: [] };
  let chosen = NOTHING;

  // Single instructions have few samples: show their mean with three digits, however small it is.
  const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
  const shown = (list) => (members ? list.filter((op) => members.has(op)) : list);
  const opsOf = (line) => shown(kernel.ops[line] ?? []);
  const seen = (line) => kernel.seen[event]?.[line] ?? 0;
  const seenAt = (number) => kernel.seenAt[event]?.[number] ?? 0;

  const eventMetric = () => data.metrics.find(({ name }) => name === event);

  const seenCell = (value) => {
    const cell = make("b", "v", value ? compact.format(value / (eventMetric()?.shown[whole][0] ?? 1)) : "");
    if (value) cell.title = value + " in all, " + share(value, kernel.total[event]);
    return cell;
  };

  // `line`: line of the final IR; 0: none.
  function row(line, value, name, origin, text) {
    const mark = line > 0 && line === chosen.line ? " selected" : chosen.lines.has(line) ? " related" : "";
    const cells = [make("b", "n", name), seenCell(value), make("b", "o", origin), make("code", "", text)];
    const element = make("div", "kr" + mark, ...cells);
    const total = kernel.total[event];
    if (value && total) element.style.setProperty("--heat-share", Math.round((100 * value) / total) + "%");
    return element;
  }

  function drawLine(number) {
    const line = number + 1;
    const drawn = row(line, seen(line), String(line), opsOf(line).slice(0, 2).join(" "), kernel.lines[number]);
    drawn.classList.toggle("noted", kernel.noted.has(line));
    return drawn;
  }

  function drawInstruction(number) {
    const [address, line, text] = kernel.code[number];
    return row(line, seenAt(number), address, line ? String(line) : "–", text);
  }

  // Selection

  const linesOfOp = (op) => kernel.linesOf.get(op) ?? [];

  function choose(next, reveal) {
    chosen = { ...NOTHING, ...next };
    const first = chosen.line || Math.min(...chosen.lines);
    if (reveal !== "ir" && Number.isFinite(first) && first > 0) ir.reveal(first - 1);
    const at = chosen.loop >= 0 ? kernel.loops[chosen.loop].at : hottest();
    if (reveal !== "code" && at >= 0) code.reveal(at);
    paintRows();
    markSide();
    paintRemarks();
  }

  // The selected lines' instruction with most samples; without samples, the first.
  function hottest() {
    let best = -1;
    kernel.code.forEach(([, line], number) => {
      if (line !== chosen.line && !chosen.lines.has(line)) return;
      if (line > 0 && (best < 0 || seenAt(number) > seenAt(best))) best = number;
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
    byId("kernel-basis").textContent = eventMetric()?.shown[whole][1] ?? "";
    ir.paint();
    code.paint();
  }

  // Ops and loops

  const described = (op) => (ops.has(op) ? ops.get(op).name + " " + ops.get(op).line[0] : "");

  function opButton(op, value) {
    const button = makeButton(op + " " + described(op), () => chooseOp(op));
    button.dataset.op = op;
    return make("li", "", button, " ", seenCell(value), " ", link("source", op));
  }

  function paintSide() {
    const list = make("ul", "ops");
    for (const op of shown(kernel.all)) {
      list.append(opButton(op, linesOfOp(op).reduce((sum, line) => sum + seen(line), 0)));
    }
    byId("kernel-ops").replaceChildren(list);
    const tree = make("ul", "loops");
    kernel.loops.forEach((loop, number) => {
      const text = "loop at " + kernel.code[loop.at][0] + ", " + loop.instructions + " instructions: ";
      const own = shown(loop.ops);
      const more = own.length > 6 ? " and " + (own.length - 6) + " more" : "";
      const words = own.length ? own.slice(0, 6).map((op) => op + " " + described(op)).join(", ") + more : "no op";
      const button = makeButton(text + words, () => chooseLoop(number));
      button.dataset.loop = number;
      const item = make("li", "", button);
      item.style.marginLeft = kernel.depth[number] * 14 + "px";
      tree.append(item);
    });
    byId("kernel-loops").replaceChildren(kernel.loops.length ? tree : make("p", "facts", kernel.noCode || "No loops."));
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
    entry.all = [...entry.linesOf.keys()].sort((a, b) => Number(a.slice(2)) - Number(b.slice(2)));
    entry.total = {};
    for (const [name, lines] of Object.entries(entry.seen)) {
      entry.total[name] = Object.values(lines).reduce((sum, value) => sum + value, 0);
    }
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
  }

  function open(index) {
    kernel = prepare(data.kernels[index]);
    byId("kernel").value = String(index);
    const events = Object.keys(kernel.seen);
    byId("kernel-event").replaceChildren(...events.map((name) => new Option(name)));
    byId("kernel-event").disabled = !events.length;
    event = events.includes(event) ? event : events[0] ?? "";
    if (event) byId("kernel-event").value = event;
    byId("kernel-site").replaceChildren(...[...kernel.sites, "all"].map((name) => new Option(name)));
    showSite(kernel.sites[0] ?? "all");
    byId("kernel-note").textContent = kernel.noCode ? "Machine code: " + kernel.noCode + "." : "";
    chosen = NOTHING;
    ir.set(kernel.lines.length, widest(kernel.lines));
    code.set(kernel.code.length, widest(kernel.code.map(([, , text]) => text)));
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

  byId("kernel").replaceChildren(...data.kernels.map(({ name }, index) => new Option(name, index)));
  byId("kernel").addEventListener("change", (change) => (location.hash = "kernel" + change.target.value));
  byId("kernel-site").addEventListener("change", (change) => {
    showSite(change.target.value);
    paintSide();
    choose({ ops: [] });
  });
  function repaintKernel() {
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
  open(0);
  follow();
}
