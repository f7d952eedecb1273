// Navigation on pages of sources and tables: keys, clicks on lines, and the selected metric. The page defines `repaint` and
// `follow`, which shows what the address names.
function choose(index) {
  metric = index;
  byId("metric").value = String(index);
  repaint();
  keep("metric", chosenMetric().name);
}

function stepAmong(keys, by) {
  if (!keys.length) return;
  const at = keys.indexOf(selectedLine);
  go(keys[at < 0 ? (by > 0 ? 0 : keys.length - 1) : (at + by + keys.length) % keys.length]);
}

const sourceShown = () => data.sources.findIndex((source, index) => "F" + index === panels[view].id);

// `actions`: further functions of the page, by key.
function listenToPage(actions) {
  const views = panels.slice(0, 9).map((panel, index) => [String(index + 1), () => go(panel.id)]);
  const everywhere = {
    m: () => measured && choose((metric + 1) % data.metrics.length),
    "/": () => (tables.get(panels[view].id) ? tables.get(panels[view].id).filter.focus() : openSearch()),
    s: openSearch,
    Escape: closeDetails,
    ...Object.fromEntries(views),
  };
  const onTab = {
    ArrowRight: () => show(view + 1, true),
    ArrowLeft: () => show(view - 1, true),
    Home: () => show(0, true),
    End: () => show(-1, true),
  };
  listenToKeys({ ...everywhere, ...actions }, onTab);
  for (const text of document.querySelectorAll(".code")) text.addEventListener("click", openLine);
  addEventListener("hashchange", () => {
    restoreSettings();
    follow();
  });
}

function openLine(event) {
  const row = event.target.closest(".l[id]");
  if (row && !event.target.closest("a, button") && !String(getSelection())) go(row.id);
}

function listenToMetric() {
  byId("metric").addEventListener("change", (event) => choose(Number(event.target.value)));
  setting("metric", chosenMetric().name, (name) => {
    const index = data.metrics.findIndex((entry) => entry.name === name);
    if (index >= 0) choose(index);
    return chosenMetric().name;
  });
}
