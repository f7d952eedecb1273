// Sources of both sides: gutters of lines, and panes that scroll together.
const sourceTexts = new Map(); // by the id of their pane: `A0`
data.sources.forEach((source, index) => {
  for (const text of source.texts) sourceTexts.set(text.side + index, { ...text, source, index, pane: byId(text.side + index) });
});

function lineOf(key) {
  const match = /^([AB]\d+)L(\d+)$/.exec(key);
  const text = match && sourceTexts.get(match[1]);
  if (!text || !byId(key)) return null;
  return { key, text, number: Number(match[2]), use: text.uses[match[2]] && unpacked("DiffLine", text.uses[match[2]]) };
}

// The largest change of any line of a source, on either side.
function largestChange(source) {
  const largest = (source.largest ??= new Map());
  if (!largest.has(metric)) {
    const at = data.fields.DiffLine.indexOf("amounts");
    const lines = source.texts.flatMap((text) => Object.values(text.uses).map((use) => ({ amounts: use[at] })));
    largest.set(metric, largestOf(lines));
  }
  return largest.get(metric);
}

// The mark of a line with new, removed or edited ops.
function markOf(use) {
  const lineOps = use.ops.map((row) => data.ops[row]);
  if (lineOps.some((op) => op.how === "new")) return ["+", "has a new op", "more"];
  if (lineOps.some((op) => op.how === "gone")) return ["−", "has an op that was removed", "less"];
  if (lineOps.some((op) => op.edited)) return ["~", "has an edited op", ""];
  return ["", "", ""];
}

function gutter(row) {
  const { number, text, use } = lineOf(row.id);
  const anchor = make("a", "", String(number));
  anchor.href = "#" + row.id;
  const place = make("span", "g", anchor);
  if (!use) return place;
  const [sign, words, style] = markOf(use);
  const mark = make("b", "u " + style, sign);
  mark.title = words;
  place.append(mark);
  if (measured && changeOf(use) !== null) place.append(...costCells(text, use, place));
  return place;
}

function costCells(text, use, place) {
  const cells = [];
  const cell = (style, words, sum) => {
    const element = make("b", style, words);
    element.title = inAll(sum, chosenMetric());
    cells.push(element);
  };
  if (!beforeOf(use) && !afterOf(use)) return [];
  if (text.source.same || text.side === "A") cell("a", costText(beforeOf(use)), beforeOf(use));
  if (text.source.same || text.side === "B") {
    cell("a", costText(afterOf(use)), afterOf(use));
    cell("d", changeText(changeOf(use)), changeOf(use));
  }
  const tint = tintOf(changeOf(use), largestChange(text.source));
  if (tint) place.classList.add(tint);
  return cells;
}

for (const [id, text] of sourceTexts) {
  const tokens = text.colours.length ? (row) => text.colours[Number(row.id.split("L")[1]) - 1] : tokensOfMlir;
  text.blocks = new Blocks(byId(id), tokens, gutter);
}
const paintLines = () => sourceTexts.forEach((text) => text.blocks.repaint());

// Vertical scrolling moves both panes.
for (const index of data.sources.keys()) {
  const panes = ["A", "B"].map((side) => byId(side + index));
  if (panes.includes(null)) continue;
  panes.forEach((pane, number) => pane.addEventListener("scroll", () => (panes[1 - number].scrollTop = pane.scrollTop), { passive: true }));
}

function scrollToLine(key) {
  const row = byId(key);
  if (!row) return;
  lineOf(key).text.blocks.dress(row.parentElement);
  row.scrollIntoView({ block: "nearest", inline: "nearest" });
}

// Lines by the size of their change; for an op with lines on both sides, the line after.
function hottestLines(index) {
  const lines = [...sourceTexts].filter(([, text]) => text.index === index).flatMap(([id, text]) =>
    Object.entries(text.uses).map(([number, use]) => ({ key: id + "L" + number, ...unpacked("DiffLine", use) })));
  const seen = new Set();
  return bySize(lines.reverse()).filter((line) => !line.ops.every((row) => seen.has(row)) && line.ops.forEach((row) => seen.add(row)) === undefined).map((line) => line.key);
}

function markLines(selected, related) {
  for (const row of document.querySelectorAll(".l.selected, .l.related")) row.classList.remove("selected", "related");
  for (const key of related) byId(key)?.classList.add("related");
  if (selected) byId(selected)?.classList.add("selected");
}

const linesOfOp = (op) => [op.line_after[1], op.line_before[1]].filter(Boolean);
