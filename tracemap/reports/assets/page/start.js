// Selected metric and basis, keys, and clicks on lines; then shows what the address names.
function showWhole(run) {
  whole = run;
  repaint();
  keep("amounts", run ? "run" : "invocation");
}

// Repaints the numbers in the markup: costs, numbers of calls, and their basis.
function paintAmounts() {
  for (const cell of document.querySelectorAll("[data-sum]")) {
    cell.textContent = amount(Number(cell.dataset.sum), data.metrics[cell.dataset.metric]);
  }
  for (const cell of document.querySelectorAll("[data-calls]")) cell.textContent = callsText(Number(cell.dataset.calls));
  for (const note of document.querySelectorAll("[data-basis]")) {
    note.textContent = note.dataset.basis ? data.metrics[note.dataset.basis].shown[whole][1] : basisOf(chosenMetric());
  }
  byId("basis").disabled = !chosenMetric().known_invocations;
  byId("basis").value = byId("basis").disabled ? "1" : String(whole);
}

function repaint() {
  paintAmounts();
  paintLines();
  if (folding) applyFolding(true);
  paintMinimaps();
  drawOverview();
  tables.forEach((table) => table.draw());
  dispatchEvent(new Event("basis")); // for the kernels tab
  if (!details.hidden) follow();
}

// Indices of sources in the order of their tabs.
const sourcesInOrder = () => panels.filter(({ id }) => /^F\d+$/.test(id)).map(({ id }) => Number(id.slice(1)));

// Brings the hottest line of a file into view.
function showHottest(index) {
  const line = data.sources[index].hottest[metric][0];
  if (line) scrollToLine(lineKey(index, line));
}

function stepHottest(by) {
  if (metric < 0) return;
  let index = sourceShown();
  if (index < 0) index = sourcesInOrder().find((number) => data.sources[number].hottest[metric].length) ?? -1;
  if (index >= 0) stepAmong(data.sources[index].hottest[metric].map((line) => lineKey(index, line)), by);
}

function stepLine(by) {
  const index = sourceShown() < 0 ? sourcesInOrder()[0] ?? 0 : sourceShown();
  if (data.sources[index]) stepAmong(Object.keys(data.sources[index].lines).map((line) => lineKey(index, line)), by);
}

listenToPage({
  n: () => stepHottest(1),
  p: () => stepHottest(-1),
  j: () => stepLine(1),
  k: () => stepLine(-1),
  i: () => measured && chosenMetric().known_invocations && showWhole(1 - whole),
  f: () => measured && toggleFolding(),
});

byId("basis")?.addEventListener("change", (event) => showWhole(Number(event.target.value)));
addEventListener("beforeprint", () => texts[sourceShown()]?.dressAll());

show(0, false);
if (measured) {
  listenToMetric();
  setting("amounts", whole ? "run" : "invocation", (text) => {
    if (chosenMetric().known_invocations) showWhole(text === "run" ? 1 : 0);
    return whole ? "run" : "invocation";
  });
  drawOverview();
}
restoreSettings();
follow();
if (!named() && measured && sourceShown() >= 0) showHottest(sourceShown());
