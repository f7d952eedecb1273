// The tables of ops, sites and scopes.
const amountCell = (amount) => exactTitle(make("td", "num", amount ? amount[1] : "–"), amount);
const shareCell = (amount) => make("td", "num", amount ? amount[2] : "–");
const callsCell = (row) => make("td", "num", row.calls !== null ? counts.format(row.calls) : row.load_time ? "not measured" : "–");

const column = (label, value, cell, numeric) => ({ label, value, cell, numeric });
const text = (label, value, cell) => column(label, value, cell ?? ((row) => make("td", "", value(row))), false);
const amounts = (label, pick) => column(label, (row) => number(pick(row)), (row) => amountCell(pick(row)), true);

const opColumns = [
  text("op", (op) => op.id, (op) => make("td", "", link(op.id, op.id))),
  text("name", (op) => op.name, (op) => make("td", "mono", op.name)),
  text("line", (op) => op.line[0], (op) => make("td", "", link(...op.line))),
  text("python", (op) => op.python[0], (op) => make("td", "", link(...op.python))),
  text("scope", (op) => op.scope),
  text("function", (op) => op.function),
  text("fate", (op) => op.fate, (op) => make("td", "", fateBadge(op))),
  column("sites", (op) => op.sites.length, (op) => make("td", "num", String(op.sites.length)), true),
  ...(measured ? [
    column("calls", (op) => op.calls, callsCell, true),
    amounts("attributed", (op) => costOf(op)?.attributed),
    column("share", (op) => number(costOf(op)?.attributed), (op) => shareCell(costOf(op)?.attributed), true),
    amounts("inclusive", (op) => costOf(op)?.inclusive),
    amounts("low", (op) => costOf(op)?.low),
    amounts("high", (op) => costOf(op)?.high),
    amounts("median", (op) => costOf(op)?.per_call?.[0]),
    amounts("p10", (op) => costOf(op)?.per_call?.[1]),
    amounts("p90", (op) => costOf(op)?.per_call?.[2]),
  ] : []),
  text("kernel", (op) => op.kernels.join(" "), (op) => make("td", "mono", op.kernels.join(" "))),
  text("reason", (op) => op.reason, (op) => make("td", "text", op.reason)),
];

const siteColumns = [
  text("site", (site) => site.id, (site) => make("td", "", link(site.id, site.id))),
  text("kernel", (site) => site.kernel, (site) => make("td", "mono", site.kernel)),
  text("root", (site) => rootName(site), (site) => make("td", "", ...rootCell(site))),
  column("members", (site) => site.members.length, (site) => make("td", "num", String(site.members.length)), true),
  text("function", (site) => site.function),
  text("path", (site) => site.path.join(" "), (site) => make("td", "", ...site.path.flatMap((id) => [link(id, ops.has(id) ? id : ""), " "]))),
  text("command", (site) => site.command),
  ...(measured ? [
    column("calls", (site) => site.calls, callsCell, true),
    amounts("total", (site) => costOf(site)?.total),
    column("share", (site) => number(costOf(site)?.total), (site) => shareCell(costOf(site)?.total), true),
    amounts("median", (site) => costOf(site)?.per_call?.[0]),
    amounts("p10", (site) => costOf(site)?.per_call?.[1]),
    amounts("p90", (site) => costOf(site)?.per_call?.[2]),
  ] : []),
  text("notes", (site) => site.remarks.join("; "), (site) => make("td", "text", site.remarks.join("; "))),
];

const rootOf = (site) => site.members.find((member) => member.root);
const rootName = (site) => ops.get(rootOf(site)?.op)?.name ?? "";
function rootCell(site) {
  const op = ops.get(rootOf(site)?.op);
  return op ? [link(op.id, op.id), " ", make("span", "mono", op.name), " ", link(...op.line)] : ["–"];
}

const scopeColumns = [
  column("scope", (row) => row.order, (row) => {
    const indent = make("span", "indent", "\u00a0".repeat(4 * Math.max(0, row.path.length - 1)));
    return make("td", "mono", indent, row.path.at(-1) ?? "(no scope)");
  }, false),
  column("ops", (row) => row.ops, (row) => make("td", "num", String(row.ops)), true),
  ...(measured ? [
    amounts("inclusive", (row) => ofMetric(row.inclusive)),
    column("share", (row) => number(ofMetric(row.inclusive)), (row) => shareCell(ofMetric(row.inclusive)), true),
    column("bar", (row) => number(ofMetric(row.inclusive)), (row) => make("td", "", bar(ofMetric(row.inclusive))), false),
    amounts("own", (row) => ofMetric(row.attributed)),
  ] : []),
  text("path", (row) => row.path.join("/")),
];
data.scopes.forEach((row, order) => (row.order = order));

const tables = new Map();
function addTable(id, rows, columns, label) {
  const sorted = Math.max(0, columns.findIndex((entry) => entry.label === label));
  if (byId(id)) tables.set(id, new Table(byId(id), rows, columns, sorted));
}
addTable("ops", data.ops, opColumns, "attributed");
addTable("sites", data.sites, siteColumns, "total");
addTable("scopes", data.scopes, scopeColumns, "scope");
