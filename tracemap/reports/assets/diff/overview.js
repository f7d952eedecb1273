// The overview: intervals of significant changes, and the largest changes as diverging bars, savings on the left.
const MOST_BARS = 12;
const INTERVAL = { width: 150, height: 14, pad: 6, far: 4 }; // larger ratios are drawn at the end of the axis

// Draws all intervals on one logarithmic axis.
function drawIntervals() {
  const cells = [...document.querySelectorAll("td.interval")];
  if (!cells.length) return;
  const ratios = cells.map(({ dataset }) => [dataset.low, dataset.middle, dataset.high].map(Number));
  const farthest = Math.max(1.05, ...ratios.flat().filter((ratio) => ratio > 0).flatMap((ratio) => [ratio, 1 / ratio]));
  const far = Math.min(farthest, INTERVAL.far);
  const x = charts.scaleLog([1 / far, far], [INTERVAL.pad, INTERVAL.width - INTERVAL.pad]).clamp(true);
  const y = INTERVAL.height / 2;
  cells.forEach((cell, at) => {
    const [low, middle, high] = ratios[at].map((ratio) => x(Math.max(ratio, 1e-9)));
    const svg = charts.select(cell).append("svg").attr("width", INTERVAL.width).attr("height", INTERVAL.height).attr("class", direction(ratios[at][1] - 1)).attr("aria-hidden", "true");
    svg.append("line").attr("x1", x(1)).attr("x2", x(1)).attr("y1", 0).attr("y2", INTERVAL.height);
    svg.append("line").attr("class", "whisker").attr("x1", low).attr("x2", high).attr("y1", y).attr("y2", y);
    svg.append("circle").attr("cx", middle).attr("cy", y).attr("r", 4);
  });
}

function divergingBar(sum, largest) {
  const bar = make("i", direction(sum));
  bar.style.width = ((50 * Math.abs(sum)) / largest).toFixed(2) + "%";
  return make("td", "wide", make("div", "axis-of", bar));
}

function drawChanges(id, rows, named) {
  if (!byId(id)) return;
  const top = bySize(rows.slice()).slice(0, MOST_BARS);
  const largest = largestOf(top);
  const tableRows = top.map((row) => {
    const sum = changeOf(row);
    const change = make("td", "num " + (sum > 0 ? "more" : "less"), changeText(sum));
    change.title = costText(beforeOf(row)) + " → " + costText(afterOf(row));
    return make("tr", "", ...named(row), change, make("td", "num", shareText(sum)), divergingBar(sum, largest));
  });
  byId(id).replaceChildren(tableRows.length ? make("table", "plain diverging", make("tbody", "", ...tableRows)) : make("p", "facts", "No changes."));
}

function drawOverview() {
  drawChanges("changed-scopes", data.scopes, (scope) => [make("td", "mono name", scope.name)]);
  drawChanges("changed-ops", data.ops, (op) => {
    const name = make("td", "mono name", link(op.ids + " " + op.name, op.key));
    name.title = op.name + (op.scope ? " in " + op.scope : "");
    return [name, make("td", "", HOWS.includes(op.how) ? verdict(op.how) : "")];
  });
}
drawIntervals();
