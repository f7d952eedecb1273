// Makes the lines of long texts, which are not in the markup, like reports/html.py makes the others.
function makeLines(code, anchor, lines) {
  const plain = make("div", "l", make("code"));
  for (let first = 0; first < lines.length; first += data.lines_per_block) {
    const rows = lines.slice(first, first + data.lines_per_block).map((text, at) => {
      const row = plain.cloneNode(true);
      row.id = anchor + "L" + (first + at + 1);
      row.firstChild.textContent = text;
      return row;
    });
    code.append(make("div", "chunk n" + rows.length, ...rows));
  }
}

data.sources.forEach((source, index) => {
  if (source.text === null) return;
  const code = byId("F" + index).querySelector(".code");
  code.querySelector("[data-needs-script]").remove();
  makeLines(code, "F" + index, source.text.split("\n"));
  source.text = null; // free memory: the text is in the document now
});
