// Colours of source text: tokens of MLIR (any dialect, custom and generic forms, dumps) and of Python, line by line.
// Ranges of the text get them, not elements: it stays whole, so that the browser's own search marks what it finds there.

// Each token begins where the last one ended, and no pattern can divide what it takes in several ways or looks far ahead
// in vain: hostile text takes linear time. The first pattern that fits is taken, the last one takes any character.
const lexer = (...patterns) => {
  const whole = new RegExp(patterns.map(([pattern]) => "(" + pattern.source + ")").join("|") + "|.", "gsu");
  const colours = patterns.map(([, colour]) => colour);
  return (line, begin, found) => {
    whole.lastIndex = begin;
    for (let match; (match = whole.exec(line)); ) {
      const colour = colours[match.indexOf(match[0], 1) - 1];
      if (colour) found.push([colour, match.index, whole.lastIndex]);
    }
    return found;
  };
};

const ofMlir = lexer(
  [/\s+/],
  [/\/\/.*/, "c"],
  [/%[\w$.\-]+(?:#\d+)?/, "v"],
  [/"[A-Za-z_][\w$]*(?:\.[\w$]+)+"(?=\()/, "f"],
  [/"(?:[^"\\]|\\.)*\\?"?/, "s"],
  [/@(?:[A-Za-z_][\w$.\-]*|"(?:[^"\\]|\\.)*\\?"?)/, "y"],
  [/#loc\d*(?![\w$.])|\bloc(?=\()/, "d"],
  [/#[\w$.\-]+/, "a"],
  [/![\w$.\-]+/, "t"],
  [/\^[\w$.\-]+/, "o"],
  [/0x[0-9A-Fa-f]+(?!\w)/, "n"],
  [/(?:(?:\d+|\?|\[\d+\])x)+/, "n"],
  [/\d+\.\d*(?:[eE][+\-]?\d+)?/, "n"],
  [/\d+/, "n"],
  [/(?:tensor|memref|vector|tuple|complex|index|none|[su]?i\d+|bf16|tf32|f\d+(?:E\d+M\d\w*)?)(?![\w$.])/, "t"],
  [/(?:true|false|unit|dense(?:_resource)?|sparse|array|affine_(?:map|set))(?![\w$.])/, "k"],
  [/[A-Za-z_][\w$]*(?:\.[\w$]+)+/, "f"],
  [/[A-Za-z_][\w$]*(?=[ \t]*=(?!=))/, "p"],
  [/[A-Za-z_][\w$]*/, "k"],
  [/->|==|>=|<=|[=+*\/\-?]|\{-#|#-\}|::|\.\.\.|[()\[\]{}<>,:;.|!&#@%^]/],
  [/./, "e"],
);

const ofPython = lexer(
  [/\s+/],
  [/#.*/, "c"],
  [/[rbfuRBFU]{0,2}(?:"(?:[^"\\]|\\.)*"?|'(?:[^'\\]|\\.)*'?)/, "s"],
  [/@[\w.]+/, "d"],
  [/(?<=\b(?:def|class)\s)\w+/, "f"],
  [/(?:and|as|assert|async|await|break|class|continue|def|del|elif|else|except|finally|for|from|global|if|import|in|is|lambda|nonlocal|not|or|pass|raise|return|try|while|with|yield|True|False|None)\b/, "k"],
  [/(?:self|cls|abs|all|any|bool|bytes|dict|enumerate|filter|float|frozenset|getattr|int|isinstance|iter|len|list|map|max|min|next|object|print|property|range|reversed|round|set|setattr|slice|sorted|str|sum|super|tuple|type|zip)\b/, "y"],
  [/\d[\w.]*/, "n"],
  [/\w+/],
);

// Strings of Python go on over lines: `open` is what ends the one that a line begins in, "" where it begins in none.
function pythonLine(line, open) {
  const found = [];
  let at = 0;
  for (;;) {
    if (open) {
      const rest = new RegExp("(?:[^\\\\]|\\\\.)*?" + open, "y");
      rest.lastIndex = at;
      const end = rest.test(line) ? rest.lastIndex : line.length;
      found.push(["s", at, end]);
      if (end === line.length && !line.endsWith(open)) return [found, open];
      at = end;
    }
    const begins = beginOfLongString(line, at);
    ofPython(begins ? line.slice(0, begins.index) : line, at, found);
    if (!begins) return [found, ""];
    found.push(["s", begins.index, begins.end]);
    [at, open] = [begins.end, begins.open];
  }
}

function beginOfLongString(line, from) {
  const either = /#.*|[rbfuRBFU]{0,2}("""|'''|"(?:[^"\\]|\\.)*"?|'(?:[^'\\]|\\.)*'?)/g;
  either.lastIndex = from;
  for (let match; (match = either.exec(line)); ) {
    if (match[1]?.length === 3 && (match[1] === '"""' || match[1] === "'''")) {
      return { index: match.index, end: either.lastIndex, open: match[1] };
    }
  }
  return null;
}

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
