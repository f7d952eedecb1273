// Colours of source text, line by line. Ranges of the text get them, not elements: it stays whole, so that the browser's
// own search marks what it finds there.

// Tokens of MLIR, by the patterns and colours of the lexer in reports/highlight.py. Each token begins where the last
// one ended: the first pattern that fits is taken, the last one takes any character.
const LEXER = new RegExp(data.lexer.map(([pattern]) => "(" + pattern + ")").join("|"), "gsu");

function ofMlir(line) {
  const found = [];
  for (const match of line.matchAll(LEXER)) {
    const [, colour] = data.lexer[match.indexOf(match[0], 1) - 1];
    if (colour) found.push([colour, match.index, match.index + match[0].length]);
  }
  return found;
}

// Of a row of MLIR, as `Blocks` asks for it.
const tokensOfMlir = (row) => ofMlir(row.lastElementChild.textContent);

const COLOURS = new Map([..."ckvfsydatonpe"].map((name) => [name, new Highlight()]));
for (const [name, colour] of COLOURS) CSS.highlights.set(name, colour);

// Colours the text of elements, tokens by element; returns what takes the colours away.
function colour(elements, tokens) {
  const ranges = [];
  elements.forEach((element, at) => {
    const text = element.firstChild;
    if (!text) return;
    for (const [name, begin, end] of tokens[at]) {
      const range = new StaticRange({ startContainer: text, startOffset: begin, endContainer: text, endOffset: end });
      COLOURS.get(name).add(range);
      ranges.push([name, range]);
    }
  });
  return () => ranges.forEach(([name, range]) => COLOURS.get(name).delete(range));
}
