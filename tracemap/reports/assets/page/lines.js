// Lines of sources: their ops, marks, and costs of the selected metric.
const lineKey = (source, line) => "F" + source + "L" + line;
const useOf = (source, line) => source.lines[line] && unpacked("SourceLine", source.lines[line]);

function lineOf(key) {
  const match = /^F(\d+)L(\d+)$/.exec(key);
  if (!match || !data.sources[match[1]]) return null;
  const source = data.sources[match[1]];
  return { key, source, index: Number(match[1]), number: Number(match[2]), use: useOf(source, match[2]) };
}

// The lines of an op; in Python only its innermost one, or a dispatch would mark half of the file.
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

// The gutter of a line: its number, and its costs or the reason for none.
function gutter(row) {
  const { number, use } = lineOf(row.id);
  const anchor = make("a", "", String(number));
  anchor.href = "#" + row.id;
  const place = make("span", "g", anchor);
  if (use?.costs.length) place.append(...costCells(use, place));
  else if (use) {
    const remark = [use.remark, idleText(use) && idleText(use) + " between kernels"].filter(Boolean).join(", ");
    if (remark) place.append(make("b", "x", remark));
    if (use.sites.length && !measured) place.append(make("b", "k", String(use.sites.length)));
  }
  return place;
}

// The elapsed time without a kernel that belongs to a line; "" if it is less than a hundredth.
function idleText(use) {
  const notable = data.elapsed.reduce((sum, part) => sum + part.ns, 0) / 100;
  return use.overhead_ns > notable ? quantity(use.overhead_ns / (whole ? 1 : data.invocations), "ns") : "";
}

function costCells(use, place) {
  const [attributed, inclusive, heat] = use.costs[metric];
  const of = chosenMetric();
  const shown = attributed || !inclusive;
  if (heat) place.classList.add("h" + heat);
  const idle = attributed ? "" : idleText(use);
  const own = make("b", idle ? "a idle" : "a", idle || (shown ? amount(attributed, of) : ""));
  own.title = idle ? idle + " between kernels: no kernel ran (loops, copies and fills, launches)" : inAll(attributed, of);
  const all = make("b", "i", amount(inclusive, of));
  all.title = inAll(inclusive, of);
  const bars = make("b", "bar w" + barSteps(attributed) + " v" + barSteps(inclusive));
  bars.title = splitWords(use);
  return [own, make("b", idle ? "s idle" : "s", idle ? "idle" : shown ? share(attributed, of.work) : ""), bars, all, make("b", "k", callsText(use.calls))];
}

// Tooltip of a line's bar: the costs of its ops, and the whole costs of its dispatches.
function splitWords(use) {
  const cost = (id) => costOf(ops.get(id))?.attributed ?? 0;
  const named = use.ops.filter((id) => cost(id) > 0).sort((a, b) => cost(b) - cost(a));
  const words = named.slice(0, 8).map((id) => id + " " + ops.get(id).name + " " + amount(cost(id), chosenMetric()));
  if (named.length > 8) words.push("and " + (named.length - 8) + " more ops");
  const of = use.sites.slice(0, 8).map((id) => id + " " + amount(costOf(sites.get(id))?.total ?? 0, chosenMetric()));
  if (use.sites.length > 8) of.push("and " + (use.sites.length - 8) + " more");
  return words.join("\n") + (of.length ? "\nof " + of.join(", ") : "");
}

// The page has the tokens of Python, and a lexer for MLIR.
const tokensOf = ({ colours }) => (colours.length ? (row) => colours[lineOf(row.id).number - 1] : tokensOfMlir);
const texts = data.sources.map((source, index) => new Blocks(byId("F" + index), tokensOf(source), gutter));
const paintLines = () => texts.forEach((text) => text.repaint());

// Scrolls to a line, and draws its colours and gutter at once.
function scrollToLine(key) {
  const row = byId(key);
  if (!row) return;
  if (row.hidden) unfold(row);
  texts[lineOf(key).index].dress(row.parentElement);
  const [line, panel] = [row, row.closest("section")].map((element) => element.getBoundingClientRect());
  const edge = Math.min(0.3 * panel.height, 200); // lines of context above and below
  if (line.top < panel.top + edge || line.bottom > panel.bottom - edge) row.scrollIntoView({ block: "center" });
}
