// The hottest ops, on the overview.
function paintTopOps() {
  const target = byId("top-ops");
  if (!target) return;
  const cost = (op) => costOf(op)?.attributed;
  const top = data.ops.filter((op) => cost(op) > 0).sort((a, b) => cost(b) - cost(a)).slice(0, 12);
  const rows = top.map((op) => make(
    "tr", "",
    make("td", "", link(op.id, op.id)), make("td", "mono", op.name), make("td", "", link(...op.line)), make("td", "", link(...op.python)),
    make("td", "", op.scope), amountCell(cost(op)), shareCell(cost(op)), make("td", "", bar(cost(op))),
  ));
  target.replaceChildren(make("table", "plain", make("tbody", "", ...rows)));
}

// The metric that is chosen, of one invocation or of all, keys, clicks on lines; then the page begins with what the address names.
function choose(index) {
  metric = index;
  byId("metric").value = String(index);
  repaint();
}

function showWhole(run) {
  whole = run;
  repaint();
}

function repaint() {
  paintAmounts();
  paintLines();
  paintTopOps();
  tables.forEach((table) => table.draw());
  dispatchEvent(new Event("basis")); // the kernels hear it
  if (!details.hidden) follow();
}

function stepAmong(keys, by) {
  if (!keys.length) return;
  const at = keys.indexOf(selectedLine);
  go(keys[at < 0 ? (by > 0 ? 0 : keys.length - 1) : (at + by + keys.length) % keys.length]);
}

const sourceShown = () => data.sources.findIndex((source, index) => "F" + index === panels[view].id);

function stepHottest(by) {
  if (metric < 0) return;
  let index = sourceShown();
  if (index < 0) index = data.sources.findIndex((source) => source.hottest[metric].length);
  if (index >= 0) stepAmong(data.sources[index].hottest[metric].map((line) => lineKey(index, line)), by);
}

function stepLine(by) {
  const index = Math.max(0, sourceShown());
  if (data.sources[index]) stepAmong(Object.keys(data.sources[index].lines).map((line) => lineKey(index, line)), by);
}

const views = panels.slice(0, 9).map((panel, index) => [String(index + 1), () => go(panel.id)]);
listenToKeys(
  {
    n: () => stepHottest(1),
    p: () => stepHottest(-1),
    j: () => stepLine(1),
    k: () => stepLine(-1),
    m: () => metric >= 0 && choose((metric + 1) % data.metrics.length),
    i: () => measured && chosenMetric().known_invocations && showWhole(1 - whole),
    "/": () => tables.get(panels[view].id)?.filter.focus(),
    Escape: closeDetails,
    ...Object.fromEntries(views),
  },
  {
    ArrowRight: () => show(view + 1, true),
    ArrowLeft: () => show(view - 1, true),
    Home: () => show(0, true),
    End: () => show(-1, true),
  },
);

for (const panel of document.querySelectorAll(".source")) {
  panel.addEventListener("click", (event) => {
    const row = event.target.closest(".l:not(.head)");
    if (!row || event.target.closest("a") || String(getSelection())) return;
    go(row.id);
  });
}
byId("metric")?.addEventListener("change", (event) => choose(Number(event.target.value)));
byId("basis")?.addEventListener("change", (event) => showWhole(Number(event.target.value)));
addEventListener("hashchange", follow);
addEventListener("beforeprint", () => texts[sourceShown()]?.dressAll());

show(0, false);
paintTopOps();
follow();
