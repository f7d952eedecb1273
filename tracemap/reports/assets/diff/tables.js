// The tables of ops, remarks and scopes.
const changeTitle = () => basisOf(chosenMetric());
const changeCell = (rows) => (row) => {
  const sum = changeOf(row);
  const cell = make("td", "num change", sum === null ? "–" : changeText(sum));
  const tint = tintOf(sum, rows.largest?.metric === metric ? rows.largest.of : (rows.largest = { metric, of: largestOf(rows) }).of);
  if (tint) cell.classList.add(tint);
  if (sum !== null) cell.title = inAll(sum, chosenMetric());
  return cell;
};
const sumColumn = (label, of) => column(label, of, (row) => make("td", "num", of(row) === null ? "–" : costText(of(row))), true, changeTitle);
const sizeOf = (row) => (changeOf(row) === null ? null : Math.abs(changeOf(row)));
const costColumns = (rows) => (measured ? [
  sumColumn("before", beforeOf),
  sumColumn("after", afterOf),
  column("change", changeOf, changeCell(rows), true, changeTitle),
  column("of total", sizeOf, (row) => make("td", "num", changeOf(row) === null ? "–" : shareText(changeOf(row))), true, () => "of the total before; sorted by absolute size"),
] : []);

const ratioColumn = (label, at, of) => column(label, (op) => op.ratio?.[at] ?? null, (op) => make("td", "num", op.ratio ? op.ratio[at].toFixed(2) : "–"), true, () => of);
const RATIO = "median per invocation after over before; the overview says whether times are corrected for the machine's speed";
const outcomesOf = (op) => [...new Set([op.outcome_before, op.outcome_after].filter(Boolean))].join("→");
const kernelWords = (op) => (op.kernels_before.join(" ") === op.kernels_after.join(" ") ? op.kernels_after.join(" ") : op.kernels_before.join(" ") + " → " + op.kernels_after.join(" "));
const HOWS = ["new", "gone"];

const opColumns = [
  text("op", (op) => op.ids, (op) => make("td", "", link(op.ids, op.key))),
  text("name", (op) => op.name, (op) => make("td", "mono", op.name)),
  ...(data.sources[0]?.same ? [] : [text("line before", (op) => op.line_before[0], (op) => make("td", "", link(...op.line_before)))]),
  text(data.sources[0]?.same ? "line" : "line after", (op) => op.line_after[0], (op) => make("td", "", link(...op.line_after))),
  ...costColumns(data.ops),
  ...(data.ops.some((op) => op.ratio) ? [ratioColumn("ratio", 0, RATIO), ratioColumn("ratio low", 1, "lower end of the 95 % interval"), ratioColumn("ratio high", 2, "upper end of the 95 % interval")] : []),
  asWideAs(text("significant", (op) => op.finding, (op) => make("td", "", op.finding ? verdict(op.finding) : "")), () => "slower   "),
  asWideAs(text("matched", (op) => op.how + (op.edited ? ", edited" : ""), (op) => make("td", "", HOWS.includes(op.how) ? verdict(op.how) : op.how, op.edited ? ", edited" : "")), (op) => op.how + (op.edited ? ", edited" : "") + "  "),
  text("scope", (op) => op.scope),
  text("outcome", outcomesOf, (op) => make("td", "", ...outcomesOf(op).split("→").flatMap((outcome, at) => [at ? " → " : "", outcomeBadge(outcome)]))),
  text("code", (op) => op.code),
  text("kernels", kernelWords, (op) => make("td", "mono", kernelWords(op))),
];

const opLinks = (rows) => rows.slice(0, 6).flatMap((row, at) => [at ? " " : "", link(data.ops[row].ids, data.ops[row].key)]);
const remarkSide = (remark) => (remark.kind === "new" ? "B" : "A");
const remarkColumns = [
  asWideAs(text("change", (remark) => remark.kind, (remark) => make("td", "", verdict(remark.kind))), () => "gone  "),
  asWideAs(text("ops", (remark) => remark.ops.map((row) => data.ops[row].ids).join(" "), (remark) => make("td", "", ...opLinks(remark.ops))), (remark) => remark.ops.slice(0, 6).map((row) => data.ops[row].ids).join(" ")),
  text("pass", (remark) => remark.pass_name),
  text("remark", (remark) => remark.text, (remark) => longCell(remark.text)),
  numbers("times", (remark) => remark.count),
  text("kernel", (remark) => remark.kernel, (remark) => make("td", "mono", ...kernelLinks([remark.kernel], remarkSide(remark)))),
  numbers("line", (remark) => remark.line || ""),
];

const scopeColumns = [
  text("scope", (scope) => scope.name, (scope) => make("td", "mono", scope.name)),
  numbers("ops", (scope) => scope.ops),
  ...costColumns(data.scopes),
];

const tables = new Map();
function addTable(id, rows, columns, label) {
  const sorted = Math.max(0, columns.findIndex((entry) => entry.label === label));
  if (byId(id)) tables.set(id, new Table(byId(id), rows, columns, sorted, null));
}
addTable("ops", data.ops, opColumns, "of total");
addTable("remarks", data.remarks, remarkColumns, "");
addTable("scopes", data.scopes, scopeColumns, "of total");
