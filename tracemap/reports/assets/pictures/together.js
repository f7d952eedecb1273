// Correlations between the metrics of a site's calls, and conditional probabilities of the quantiles of two metrics. Looks
// like the page of statistics.
const PARTS = 10000; // a probability of 1

const shadeOf = (parts) => Math.min(data.shades - 1, Math.floor(Math.sqrt(parts / PARTS) * data.shades));
const percentOf = (parts) => (parts && parts < PARTS / 200 ? "<1" : String(Math.round((100 * parts) / PARTS)));
const hundredths = (number) => (number === null ? "–" : (number / 100).toFixed(2));
const heading = (text, scope, title) => {
  const cell = make("th", "", text);
  cell.scope = scope;
  if (title) cell.title = title;
  return cell;
};

// Filled when opened, as a line may have many dispatch sites.
function measuresTogether(site) {
  const [run, calls, oneOf, series, pairs] = data.together[site.id];
  const part = make("details", "facts together", make("summary", "", "correlations of metrics"));
  part.addEventListener("toggle", () => {
    if (!part.open || part.childElementCount > 1) return;
    const names = series.map(([number]) => data.metrics[number].name);
    const of = quantity(calls, "count") + " calls" + (oneOf > 1 ? ", in every " + oneOf + "th invocation" : "") + (run > 1 ? ", of run " + run : "");
    const map = make("div", "");
    const choose = (pair) => map.replaceChildren(heatMap(pair, series, names));
    part.append(make("p", "", "Pearson correlations of " + of + " (–: a metric is constant). Click a number for its heat map."));
    part.append(make("div", "scroll", correlations(names, pairs, choose)), map);
    choose(pairs[0]);
  });
  return part;
}

function correlations(names, pairs, choose) {
  const cells = new Map(pairs.map((pair) => [pair[0] + " " + pair[1], pair]));
  const head = make("tr", "", make("td", ""), ...names.map((name) => heading(name, "col")));
  const rows = names.map((name, row) => {
    const line = names.map((other, column) => {
      if (row === column) return make("td", "plus r" + data.tints, "1");
      const pair = cells.get(Math.min(row, column) + " " + Math.max(row, column));
      const tint = Math.round(((pair[2] ?? 0) * data.tints) / 100);
      const button = makeButton(hundredths(pair[2]), () => choose(pair));
      button.setAttribute("aria-label", name + " and " + other + ": correlation " + (pair[2] === null ? "none" : hundredths(pair[2])) + ", show heat map");
      return make("td", (tint < 0 ? "minus" : "plus") + " r" + Math.abs(tint), button);
    });
    return make("tr", "", heading(name, "row"), ...line);
  });
  return make("table", "matrix", make("thead", "", head), make("tbody", "", ...rows));
}

function heatMap([of, given, , parts], series, names) {
  const quantiles = series[of][1].length;
  const meanOf = (which, quantile) => {
    const [number, means] = series[which];
    return names[which] + ": mean " + (means[quantile] === null ? "–" : single(means[quantile], data.metrics[number]));
  };
  const columns = [...Array(quantiles).keys()];
  const filled = columns.map((column) => columns.some((row) => parts[row * quantiles + column]));
  const cell = (row) => (column) => {
    const probability = parts[row * quantiles + column];
    const cell = make("td", "q" + shadeOf(probability), filled[column] ? percentOf(probability) : "");
    cell.title = String(probability / PARTS);
    return cell;
  };
  const head = make("tr", "", make("td", ""), ...columns.map((column) => heading(String(column), "col", meanOf(given, column))));
  const rows = columns.map((row) => make("tr", "", heading(String(row), "row", meanOf(of, row)), ...columns.map(cell(row))));
  const words = make("p", "", make("b", "", names[of]), " quantile (↓) given ", make("b", "", names[given]), " quantile (→), in percent. Columns add up to 100; a column is empty if equal values leave its quantile without calls");
  return make("div", "", words, make("div", "scroll", make("table", "heat", make("thead", "", head), make("tbody", "", ...rows))));
}
