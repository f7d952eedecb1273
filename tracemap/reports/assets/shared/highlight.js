// Colours of source text, line by line. They apply to ranges of text, not to elements, so the text stays whole for the
// browser's search.

// Tokens of MLIR, by the patterns and colours of the lexer in reports/highlight.py. A token begins where the last one
// ended. The first matching pattern wins; the last pattern matches any character.
const LEXER = new RegExp(data.lexer.map(([pattern]) => "(" + pattern + ")").join("|"), "gsu");

function ofMlir(line) {
  const tokens = [];
  for (const match of line.matchAll(LEXER)) {
    const [, colour] = data.lexer[match.indexOf(match[0], 1) - 1];
    if (colour) tokens.push([colour, match.index, match.index + match[0].length]);
  }
  return tokens;
}

// Tokens of a row of MLIR, for `Blocks`.
const tokensOfMlir = (row) => ofMlir(row.lastElementChild.textContent);

const COLOURS = new Map([..."ckvfsydatonpe"].map((name) => [name, new Highlight()]));
for (const [name, colour] of COLOURS) CSS.highlights.set(name, colour);

// Colours the text of elements by their tokens; returns a function that removes the colours.
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
