// Selected metric, keys, and clicks on lines; then shows what the address names.
function repaint() {
  paintBasis();
  paintLines();
  drawOverview();
  repaintGroups();
  tables.forEach((table) => table.draw());
  dispatchEvent(new Event("basis")); // for the kernels tab
  if (!details.hidden) follow();
}

function stepHottest(by) {
  const keys = measured && data.sources.length ? hottestLines(Math.max(0, sourceShown())) : [];
  stepAmong(keys, by);
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

listenToPage({ n: () => stepHottest(1), p: () => stepHottest(-1) });
addEventListener("beforeprint", () => sourceTexts.forEach((text) => text.index === sourceShown() && text.blocks.dressAll()));

show(0, false);
if (measured) {
  listenToMetric();
  paintBasis();
  drawOverview();
}
restoreSettings();
follow();
