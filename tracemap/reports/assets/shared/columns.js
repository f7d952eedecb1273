// Columns of tables: sort keys and cells.
function longCell(words) {
  const cell = make("td", "text", words);
  cell.title = words;
  return cell;
}
const numberCell = (value, unit) => make("td", "num", isKnown(value) ? quantity(value, unit) : "–");

// Tooltips of headings, from docs/glossary.md.
const DEFINITIONS = {
  op: "operation of the model; click to see its line, cost and kernels",
  node: "path and operator of the node",
  name: "name of the op in its dialect",
  line: "line of the model",
  python: "innermost line of your Python code that made the op",
  pass: "whether the op belongs to the forward or the backward pass",
  function: "function of the model",
  kernel: "function of machine code that the compiler generated",
  reason: "why the op has this outcome",
  calls: "executions of the dispatches",
  total: "cost of the dispatch, which its ops share",
  ops: "number of ops",
  bar: "share of the measured cost",
  path: "where it is: the scope, or the call ops that lead to the dispatch",
  command: "command buffer of the runtime, and index in it",
  notes: "how the cost was split",
  "median/call": "half of the calls take less",
  "p10/call": "a tenth of the calls take less",
  "p90/call": "a tenth of the calls take more",
  "slowest/call": "wall time of the slowest call",
  "median/invocation": "half of the invocations cost less",
  "p10/invocation": "a tenth of the invocations cost less",
  "p90/invocation": "a tenth of the invocations cost more",
  attributed: "what the op gets of its dispatches' costs; adds up",
  "share of work": "share of the measured cost",
  inclusive: "whole cost of every dispatch that the op is in; does not add up",
  low: "lower bound that the evidence proves, whatever the rule",
  high: "upper bound that the evidence proves, whatever the rule",
  from: "lower end of the likely range",
  to: "upper end of the likely range",
  uncertain: "~: the likely range is so wide that you should not rank ops by the cost",
  outcome: "where the op went; every op has exactly one outcome",
  "gain if 2x faster": "part of an invocation's time that the program saves if the op is twice as fast, from when its kernels ran",
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
