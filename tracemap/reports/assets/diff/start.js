// The metric that is chosen, keys, clicks on lines; then the page begins with what the address names.
function choose(index) {
  metric = index;
  byId("metric").value = String(index);
  repaint();
  keep("metric", chosenMetric().name);
}

function repaint() {
  paintBasis();
  paintLines();
  drawOverview();
  repaintGroups();
  tables.forEach((table) => table.draw());
  dispatchEvent(new Event("basis")); // the kernels hear it
  if (!details.hidden) follow();
}

const sourceShown = () => data.sources.findIndex((source, index) => "F" + index === panels[view].id);

function stepHottest(by) {
  const keys = measured && data.sources.length ? hottestLines(Math.max(0, sourceShown())) : [];
  if (!keys.length) return;
  const at = keys.indexOf(selectedLine);
  go(keys[at < 0 ? (by > 0 ? 0 : keys.length - 1) : (at + by + keys.length) % keys.length]);
}

function follow() {
  const name = named();
  const group = /^group(\d+)$/.exec(name);
  if (panels.some((panel) => panel.id === name)) showPanel(name);
  else if (selectLine(name)) return;
  else if (opOfKey.has(name)) selectOp(opOfKey.get(name));
  else if (/^kernel\d+$/.test(name) && data.kernels.length) showPanel("kernels");
  else if (group && data.groups[group[1] - 1]) openGroup(group[1] - 1);
}

const views = panels.slice(0, 9).map((panel, index) => [String(index + 1), () => go(panel.id)]);
listenToKeys(
  {
    n: () => stepHottest(1),
    p: () => stepHottest(-1),
    m: () => measured && choose((metric + 1) % data.metrics.length),
    "/": () => (tables.get(panels[view].id) ? tables.get(panels[view].id).filter.focus() : openSearch()),
    s: openSearch,
    Escape: closeDetails,
    ...Object.fromEntries(views),
  },
  keysOfTabs,
);

for (const pane of document.querySelectorAll(".pane")) {
  pane.addEventListener("click", (event) => {
    const row = event.target.closest(".l[id]");
    if (row && !event.target.closest("a") && !String(getSelection())) go(row.id);
  });
}
byId("metric")?.addEventListener("change", (event) => choose(Number(event.target.value)));
addEventListener("hashchange", () => {
  restoreSettings();
  follow();
});
addEventListener("beforeprint", () => sourceTexts.forEach((text) => text.index === sourceShown() && text.blocks.dressAll()));

show(0, false);
if (measured) {
  setting("metric", chosenMetric().name, (name) => {
    const index = data.metrics.findIndex((each) => each.name === name);
    if (index >= 0) choose(index);
    return chosenMetric().name;
  });
  paintBasis();
  drawOverview();
}
restoreSettings();
follow();
