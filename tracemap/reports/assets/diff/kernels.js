// Kernels whose code changed: final IR or machine code of both sides, with marks at lines that differ; an op selects its
// lines on both.
// A block keeps its names (open, row …) private.
if (data.kernels.length) {
  let pair = null;
  let shown = "ir";
  let chosen = null; // the op whose lines are marked
  const panes = {};

  function prepare(view, side) {
    if (!view || view.rowsOfLine) return view;
    view.rowsOfLine = new Map(Object.entries(view.ops).map(([line, ids]) => [Number(line), ids.map((id) => opsOfSide[side].get(id)?.row)]));
    return view;
  }
  const viewOf = (side) => prepare(side === "A" ? pair.before : pair.after, side);
  const lineCount = (view) => (!view ? 0 : shown === "ir" ? view.lines.length : view.code.length);
  const lineAt = (view, number) => (shown === "ir" ? number + 1 : view.code[number][1]);

  // The differences of the shown texts, as [begin and end before, begin and end after]; null if they are not compared.
  const blocks = () => (shown === "ir" ? pair.lines_differ : pair.code_differs);
  let differing = { A: new Set(), B: new Set() };
  let current = -1; // the difference in view

  function setDifferences() {
    differing = { A: new Set(), B: new Set() };
    for (const [beginA, endA, beginB, endB] of blocks() ?? []) {
      for (let number = beginA; number < endA; number++) differing.A.add(number);
      for (let number = beginB; number < endB; number++) differing.B.add(number);
    }
    current = -1;
    const count = blocks()?.length ?? 0;
    const text = blocks() ? (count || "no") + (count === 1 ? " difference" : " differences") : lineCount(viewOf("A")) && lineCount(viewOf("B")) ? "too long to compare" : "";
    byId("kernel-differences").replaceChildren(text, " ", ...(count ? [makeButton("next difference", () => showDifference(current + 1))] : []));
  }

  function showDifference(index) {
    const all = blocks();
    if (!all?.length) return;
    current = index % all.length;
    panes.A.reveal(Math.min(all[current][0], Math.max(0, panes.A.count - 1)));
    panes.B.reveal(Math.min(all[current][2], Math.max(0, panes.B.count - 1)));
    paint();
  }

  function drawRow(side, number) {
    const view = viewOf(side);
    const line = lineAt(view, number);
    const rows = view.rowsOfLine.get(line) ?? [];
    const [name, words] = shown === "ir" ? [String(line), view.lines[number]] : [view.code[number][0], view.code[number][2]];
    const ids = rows.slice(0, 2).map((row) => (side === "A" ? data.ops[row]?.before : data.ops[row]?.after)).join(" ");
    const differs = differing[side].has(number);
    const classes = "kr" + (chosen !== null && rows.includes(chosen) ? " related" : "") + (differs ? " differs" : "");
    return make("div", classes, make("b", "n", name), make("b", "m", differs ? { A: "−", B: "+" }[side] : ""), make("b", "o", ids), make("code", "", words));
  }

  function chooseOp(row) {
    chosen = row;
    for (const side of ["A", "B"]) {
      const view = viewOf(side);
      for (let number = 0; number < lineCount(view); number++) {
        if (!view.rowsOfLine.get(lineAt(view, number))?.includes(row)) continue;
        panes[side].reveal(number);
        break;
      }
    }
    paint();
    paintSide();
  }

  for (const side of ["A", "B"]) {
    panes[side] = new Rows(byId("kernel-" + side), (number) => drawRow(side, number), (number) => {
      const rows = viewOf(side).rowsOfLine.get(lineAt(viewOf(side), number));
      if (rows?.length) chooseOp(rows[0]);
    });
  }
  const paint = () => ["A", "B"].forEach((side) => panes[side].paint());

  const FIGURES = [["instructions", "instructions"], ["loops", "loops"], ["vector_bits", "vector bits"], ["spills", "spills"]];
  const numberText = (value) => (isKnown(value) ? String(value) : "–");

  function paintFigures() {
    const words = FIGURES.map(([key, label]) => {
      const [before, after] = [pair.code_before[key], pair.code_after[key]];
      return label + " " + (before === after ? numberText(before) : numberText(before) + " → " + numberText(after));
    });
    byId("kernel-figures").replaceChildren(...words.flatMap((text, at) => [at ? " · " : "", make("span", "figure", text)]));
  }

  function paintSide() {
    const list = make("ul", "ops");
    for (const row of pair.ops) {
      const op = data.ops[row];
      const sum = changeOf(op);
      const button = makeButton(op.ids + " " + op.name, () => chooseOp(row), row === chosen ? "on" : "");
      list.append(make("li", "", button, " ", make("span", sum > 0 ? "more" : "less", sum ? changeText(sum) : ""), " ", link("source", op.key)));
    }
    byId("kernel-ops").replaceChildren(list);
    const names = { A: pair.before?.name, B: pair.after?.name };
    const remarks = data.remarks.filter((remark) => remark.kernel === names[remarkSide(remark)] && (chosen === null || remark.ops.includes(chosen)));
    const none = data.remarks.length ? (chosen === null ? "None." : "None for the selected op.") : "Not recorded. Build both bundles with --remarks.";
    byId("kernel-remarks").replaceChildren(...(remarks.length ? remarkLines(remarks) : [make("p", "facts", none)]));
  }

  function setRows() {
    setDifferences();
    for (const side of ["A", "B"]) {
      const view = viewOf(side);
      const texts = !view ? [] : shown === "ir" ? view.lines : view.code.map(([, , text]) => text);
      panes[side].set(texts.length, texts.reduce((most, words) => Math.max(most, words.length), 20));
      const word = side === "A" ? "before" : "after";
      const why = !view ? ": kernel does not exist" : shown === "machine" && view.noCode ? ": " + view.noCode : "";
      byId("kernel-name-" + side).textContent = word + (view ? ": " + view.name : "") + why;
      byId("kernel-name-" + side).title = view?.name ?? "";
    }
    requestAnimationFrame(() => current < 0 && showDifference(0));
  }

  function open(number) {
    pair = data.kernels[number];
    chosen = null;
    byId("kernel").value = String(number);
    setRows();
    paintFigures();
    paintSide();
  }

  function follow() {
    const match = /^kernel(\d+)$/.exec(named());
    if (!match || !data.kernels[match[1]]) return;
    open(Number(match[1]));
    requestAnimationFrame(paint);
  }

  const label = ({ A, B }) => (A === B ? A : (A || "new") + " → " + (B || "gone"));
  byId("kernel").replaceChildren(...kernelNames.map((names, number) => new Option(label(names), number)));
  byId("kernel").addEventListener("change", (change) => (location.hash = "kernel" + change.target.value));
  choice("code", "ir", (text) => {
    if (text === "ir" || text === "machine") shown = text;
    pressChoice("code", shown);
    setRows();
    paint();
    return shown;
  });
  addEventListener("basis", paintSide);
  addEventListener("hashchange", follow);
  byId("kernels").addEventListener("show", () => {
    paint();
    showDifference(Math.max(0, current)); // a hidden pane has no height to scroll in
  });
  addEventListener("resize", paint);
  splitPanes(document.querySelector(".kernel-grid"));
  open(0);
  pressChoice("code", shown);
  follow();
}
