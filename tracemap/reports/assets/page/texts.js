// The lines of a long text do not stand in the markup: they are made here, as reports/html/blocks.py makes those of others.
const LINES_PER_BLOCK = 100;

function fill(code, anchor, lines) {
  const plain = make("div", "l", make("code"));
  for (let first = 0; first < lines.length; first += LINES_PER_BLOCK) {
    const rows = lines.slice(first, first + LINES_PER_BLOCK).map((text, at) => {
      const row = plain.cloneNode(true);
      row.id = anchor + "L" + (first + at + 1);
      row.firstChild.textContent = text;
      return row;
    });
    code.append(make("div", "chunk n" + rows.length, ...rows));
  }
}

data.sources.forEach(({ text }, index) => {
  if (text !== null) fill(byId("F" + index).querySelector(".code"), "F" + index, text.split("\n"));
});
