// Columns of tables: sort keys and cells.
function longCell(words) {
  const cell = make("td", "text", words);
  cell.title = words;
  return cell;
}
const numberCell = (value, unit) => make("td", "num", isKnown(value) ? quantity(value, unit) : "–");

// Tooltips of headings, from docs/glossary.md.
const DEFINITIONS = {
  attributed: "what the op gets of its dispatches' costs; adds up",
  "share of work": "share of the measured cost",
  inclusive: "whole cost of every dispatch that the op is in; does not add up",
  low: "lower bound that the evidence proves, whatever the rule",
  high: "upper bound that the evidence proves, whatever the rule",
  from: "lower end of the likely range",
  to: "upper end of the likely range",
  uncertain: "~: the likely range is so wide that you should not rank ops by the cost",
  outcome: "where the op went; every op has exactly one outcome",
  dispatch: "a place in the compiled program that launches a kernel",
  dispatches: "places in the compiled program that launch a kernel and run the op",
  scope: "name path of the op, such as h0/attn",
  outliers: "time above the outlier threshold (preemption, noise); not part of the cost",
  imbalance: "how long the workers were held over how long they worked; 1: all worked from start to end",
  "tiles/call": "workgroups per call: the parts that one worker computes at a time",
  root: "the op that names the kernel",
  own: "cost of the ops directly in the scope",
};

// `of`: the basis of a column's numbers, for its tooltip.
const column = (label, value, cell, numeric, of) => ({ label, value, cell, numeric, of });
const text = (label, value, cell) => column(label, value, cell ?? ((row) => make("td", "", value(row))), false);
// A column whose cells are longer than its sort keys; `letters` gives their text.
const asWideAs = (entry, letters) => ({ ...entry, letters });
const numbers = (label, count) => column(label, count, (row) => make("td", "num", String(count(row))), true);
