// Lines of sources: which op stands on which, marks, and the figures of the chosen metric.
const lineKey = (source, line) => "F" + source + "L" + line;

function lineOf(key) {
  const match = /^F(\d+)L(\d+)$/.exec(key);
  if (!match || !data.sources[match[1]]) return null;
  const source = data.sources[match[1]];
  return { key, source, index: Number(match[1]), number: Number(match[2]), use: source.lines[match[2]] };
}

// Which lines an op stands on; in Python only its innermost one, or half the file would light up for each site.
const linesOfOp = (id) => [ops.get(id)?.line[1], ops.get(id)?.python[1]].filter(Boolean);

function markLines(selected, related) {
  for (const row of document.querySelectorAll(".l.selected, .l.related")) row.classList.remove("selected", "related");
  for (const key of related) byId(key)?.classList.add("related");
  if (selected) byId(selected)?.classList.add("selected");
}

function relatedTo(siteIds) {
  const keys = new Set();
  for (const id of siteIds) {
    for (const member of sites.get(id)?.members ?? []) for (const key of linesOfOp(member.op)) keys.add(key);
  }
  return keys;
}

function paintLines() {
  data.sources.forEach((source, index) => {
    for (const [number, use] of Object.entries(source.lines)) {
      if (!use.costs.length) continue;
      const [attributed, inclusive, heat] = use.costs[metric];
      const of = chosenMetric();
      const gutter = byId(lineKey(index, number)).firstElementChild;
      const cell = (name) => gutter.querySelector("b." + name);
      const shown = attributed || !inclusive;
      gutter.className = heat ? "g h" + heat : "g";
      cell("a").textContent = shown ? amount(attributed, of) : "";
      cell("a").title = inAll(attributed, of);
      cell("s").textContent = shown ? share(attributed, of.work) : "";
      cell("bar").className = "bar w" + barSteps(attributed) + " v" + barSteps(inclusive);
      cell("i").textContent = amount(inclusive, of);
      cell("i").title = inAll(inclusive, of);
      cell("k").textContent = callsText(use.calls);
    }
  });
}
