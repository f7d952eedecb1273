// The tables of ops, dispatch sites and scopes.
function callsCell(row) {
  const cell = make("td", "num", row.calls !== null ? callsText(row.calls) : row.load_time ? "not measured" : "–");
  if (row.calls !== null) cell.title = row.calls + " in all";
  return cell;
}
const costs = (label, pick, cell, of) => column(label, (row) => pick(row) ?? null, (row) => cell(pick(row)), true, of);
const sums = (label, pick) => costs(label, pick, amountCell, () => basisOf(chosenMetric()));
const shares = (pick) => costs("share of work", pick, shareCell, () => "of " + chosenMetric().name + " without outliers");
const calls = column("calls", (row) => row.calls, callsCell, true, () => (whole ? "in all" : "per invocation"));
const spreadOver = (unit, key) => ["median", "p10", "p90"].map((label, at) =>
  costs(label + "/" + unit, (row) => costOf(row)?.[key]?.[at], singleCell, () => chosenMetric().name + " of single " + unit + "s"));

// What the program gains if an op is twice as fast.
const gainWords = ([saved, low, high]) => saved.toFixed(1) + " % (" + low.toFixed(1) + " to " + high.toFixed(1) + ")";
function gainCell(op) {
  const cell = make("td", "num", op.gain ? op.gain[0].toFixed(1) + " %" : "–");
  if (op.gain) cell.title = gainWords(op.gain) + (op.gain[3] && ": " + op.gain[3]);
  return cell;
}
const gains = column("gain if 2x faster", (op) => op.gain?.[0] ?? null, gainCell, true, () => "of the program's time");

// Largest errors of dispatches, which `tracemap numerics` found.
const ULPS = ["of the dispatch alone, in units of the last place", "against double precision from the start, in units of the last place"];
const errorColumns = (rows) => ["error ulps", "accumulated ulps"].flatMap((label, at) => {
  const pick = (row) => row.errors?.[at] ?? null;
  const cell = (row) => (pick(row) === null ? make("td", "num", "–") : make("td", "num", ulpsText(pick(row))));
  return rows.some((row) => pick(row) !== null) ? [column(label, pick, cell, true, () => ULPS[at])] : [];
});
const ulpsText = (ulps) => (ulps > Number.MAX_SAFE_INTEGER ? "infinite" : quantity(ulps, "count"));
function errorText(row) {
  const [alone, whole] = row.errors.map((ulps) => (isKnown(ulps) ? ulpsText(ulps) + " ulps" : ""));
  return [alone, whole && whole + " accumulated"].filter(Boolean).join(", ");
}

const LIKELY = data.fields.OpCostRow.indexOf("likely"); // index into packed rows
// Forward or backward, in training steps.
const passColumns = data.ops.some((op) => op.pass_name) ? [text("pass", (op) => op.pass_name)] : [];
const opColumns = [
  text("op", (op) => op.id, (op) => make("td", "", link(op.id, op.id))),
  text("name", shortName, (op) => make("td", "mono", shortName(op))),
  ...(data.ops.some((op) => op.node) ? [text("node", (op) => op.node, (op) => make("td", "", link(...nodeOrLine(op))))] : []),
  ...(measured ? [
    sums("attributed", (op) => costOf(op)?.attributed),
    shares((op) => costOf(op)?.attributed),
    ...(data.ops.some((op) => op.gain) ? [gains] : []),
    ...(data.ops.some((op) => op.costs.some((cost) => cost[LIKELY])) ? [
      sums("from", (op) => costOf(op)?.likely?.[0]),
      sums("to", (op) => costOf(op)?.likely?.[1]),
      text("uncertain", (op) => (costOf(op)?.uncertain ? "~" : "")),
    ] : []),
    ...errorColumns(data.ops),
  ] : []),
  ...(data.ops.some((op) => op.python[0]) ? [text("python", (op) => op.python[0], (op) => make("td", "", link(...op.python)))] : []),
  text("line", (op) => op.line[0], (op) => make("td", "", link(...op.line))),
  ...passColumns,
  ...(measured ? [
    calls,
    sums("inclusive", (op) => costOf(op)?.inclusive),
    sums("low", (op) => costOf(op)?.low),
    sums("high", (op) => costOf(op)?.high),
    ...spreadOver("invocation", "per_invocation"),
  ] : []),
  text("scope", (op) => op.scope),
  text("function", (op) => op.function),
  text("outcome", (op) => op.outcome, (op) => make("td", "", outcomeBadge(op))),
  numbers("dispatches", (op) => op.sites.length),
  text("kernel", (op) => op.kernels.join(" "), (op) => kernelCell(op.kernels)),
  text("reason", (op) => op.reason, (op) => longCell(op.reason)),
];

// Nodes of an ONNX model by name; nodes without one by scope and operator. Other columns are hidden at first.
const nodeName = (op) => op.node || (op.scope ? op.scope + "/" : "") + shortName(op) + (op.scope ? "" : " (" + op.id + ")");
const nodeRows = data.ops.filter((op) => op.name.startsWith("onnx."));
const NODE_COLUMNS = ["attributed", "share of work", "uncertain", "name", "kernel"];
const nodeColumns = [
  { ...text("node", nodeName, (op) => make("td", "", link(nodeName(op), op.id))), most: 52 },
  ...NODE_COLUMNS.map((name) => opColumns.find(({ label }) => label === name)).filter(Boolean).map((entry) => (entry.label === "kernel" ? { ...entry, most: 52 } : entry)),
  ...opColumns.filter(({ label }) => !["node", "python", ...NODE_COLUMNS].includes(label)).map((entry) => ({ ...entry, isMore: true })),
];

const rootOf = (site) => site.members.find((member) => member.root);
const rootName = (site) => ops.get(rootOf(site)?.op)?.name ?? "";
function rootCell(site) {
  const op = ops.get(rootOf(site)?.op);
  return op ? [link(op.id, op.id), " ", make("span", "mono", shortName(op)), " ", link(...nodeOrLine(op))] : ["–"];
}

const kernelCell = (names) => make("td", "mono", ...names.flatMap((name, at) => [at ? " " : "", link(name, kernelNumber.has(name) ? "kernel" + kernelNumber.get(name) : "")]));

const siteColumns = [
  text("dispatch", (site) => site.id, (site) => make("td", "", link(site.id, site.id))),
  ...(measured ? [sums("total", (site) => costOf(site)?.total), shares((site) => costOf(site)?.total)] : []),
  text("kernel", (site) => site.kernel, (site) => kernelCell([site.kernel])),
  asWideAs(text("root", rootName, (site) => make("td", "", ...rootCell(site))), (site) => rootCell(site).map((part) => part.textContent ?? part).join("")),
  numbers("ops", (site) => site.members.length),
  ...(measured ? [
    calls,
    sums("outliers", (site) => costOf(site)?.outliers),
    ...spreadOver("call", "per_call"),
    costs("slowest/call", (site) => site.slowest_ns, (time) => numberCell(time, "ns")),
    column("imbalance", (site) => site.imbalance_percent, (site) => make("td", "num", isKnown(site.imbalance_percent) ? imbalanceText(site) : "–"), true),
    costs("tiles/call", tilesOf, (tiles) => numberCell(tiles, "count")),
    ...errorColumns(data.sites),
  ] : []),
  text("function", (site) => site.function),
  text("path", (site) => site.path.join(" "), (site) => make("td", "", ...site.path.flatMap((id) => [link(id, ops.has(id) ? id : ""), " "]))),
  text("command", (site) => site.command),
  text("notes", (site) => site.remarks.join("; "), (site) => longCell(site.remarks.join("; "))),
];

const indented = (row) => "\u00a0".repeat(4 * Math.max(0, row.path.length - 1)) + (row.path.at(-1) ?? "(no scope)");

const scopeColumns = [
  asWideAs(column("scope", (row) => row.order, (row) => make("td", "mono", indented(row)), false), indented),
  numbers("ops", (row) => row.ops),
  ...(measured ? [
    sums("inclusive", (row) => ofMetric(row.inclusive)),
    shares((row) => ofMetric(row.inclusive)),
    column("bar", (row) => ofMetric(row.inclusive), (row) => make("td", "", bar(ofMetric(row.inclusive))), false),
    sums("own", (row) => ofMetric(row.attributed)),
  ] : []),
  text("path", (row) => row.path.join("/")),
];
data.scopes.forEach((row, order) => (row.order = order));

const tables = new Map();
function addTable(id, rows, columns, label, work) {
  const sorted = Math.max(0, columns.findIndex((entry) => entry.label === label));
  if (byId(id)) tables.set(id, new Table(byId(id), rows, columns, sorted, work));
}
// Reads a field of packed rows, as unpacking fifty thousand rows for their sums would be slow.
const packed = (kind, name) => {
  const at = data.fields[kind].indexOf(name);
  return (row) => {
    const cost = ofMetric(row.costs);
    return Array.isArray(cost) ? cost[at] : cost?.[name];
  };
};
addTable("nodes", nodeRows, nodeColumns, "attributed", packed("OpCostRow", "attributed"));
addTable("ops", data.ops, opColumns, "attributed", packed("OpCostRow", "attributed"));
addTable("sites", data.sites, siteColumns, "total", packed("SiteCostRow", "total"));
addTable("scopes", data.scopes, scopeColumns, "scope", (row) => ofMetric(row.attributed));
