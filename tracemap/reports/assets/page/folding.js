// Folding of lines without cost: one row replaces each region and opens it. Some lines of context stay.
const LEAST_FOLDED = 8; // lines
const CONTEXT = 2; // lines
let folding = false;

function isCold(source, number) {
  const cost = source.lines[number] && useOf(source, number).costs[metric];
  return !cost || !(cost[0] || cost[1]);
}

// The foldable regions of the rows, as [first, last].
function coldRegions(source, rows) {
  const regions = [];
  let first = 0;
  const end = (at) => {
    const from = first ? first + CONTEXT : 0;
    const to = at < rows.length ? at - CONTEXT : at;
    if (to - from >= LEAST_FOLDED) regions.push([from, to - 1]);
  };
  rows.forEach((row, at) => {
    if (isCold(source, at + 1)) return;
    end(at);
    first = at + 1;
  });
  end(rows.length);
  return regions;
}

function setHidden(rows, hidden) {
  const blocks = new Set();
  for (const row of rows) {
    row.hidden = hidden;
    blocks.add(row.parentElement);
  }
  for (const block of blocks) sizeBlock(block);
}

// Blocks out of view have no layout, so their height is set.
function sizeBlock(block) {
  const shown = [...block.children].filter((row) => !row.hidden).length;
  block.style.setProperty("--lines", shown);
  block.hidden = !shown;
}

function foldSource(index) {
  const panel = byId("F" + index);
  const rows = [...panel.querySelectorAll(".chunk .l[id]")];
  for (const [first, last] of coldRegions(data.sources[index], rows)) {
    const hidden = rows.slice(first, last + 1);
    const open = makeButton("… " + plural(hidden.length, "line") + " without cost", () => {
      openFold(fold);
      paintMinimaps();
    });
    const fold = make("div", "l fold", open);
    fold.lines = hidden;
    hidden[0].before(fold);
    setHidden(hidden, true);
  }
}

function openFold(fold) {
  const block = fold.parentElement;
  fold.remove();
  setHidden(fold.lines, false);
  sizeBlock(block);
}

// Opens the folded region of a line.
function unfold(row) {
  for (const fold of document.querySelectorAll(".fold")) if (fold.lines.includes(row)) openFold(fold);
  paintMinimaps();
}

function applyFolding(on) {
  for (const fold of document.querySelectorAll(".fold")) openFold(fold);
  folding = on && measured;
  if (folding) data.sources.forEach((_, index) => foldSource(index));
  for (const button of document.querySelectorAll(".fold-switch")) button.setAttribute("aria-pressed", String(folding));
  paintMinimaps();
}

function toggleFolding() {
  applyFolding(!folding);
  keep("fold", folding ? "1" : "");
  if (selectedLine) scrollToLine(selectedLine);
}

setting("fold", "", (text) => {
  applyFolding(text === "1");
  return folding ? "1" : "";
});
for (const button of document.querySelectorAll(".fold-switch")) button.addEventListener("click", toggleFolding);
