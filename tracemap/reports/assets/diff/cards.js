// Details of the selection: an op before and after, or the ops of a line.
const MOST_IN_DETAILS = 40;
const factRow = (label, ...content) => make("tr", "", make("th", "", label), make("td", "", ...content));

function kernelLinks(names, side) {
  return names.flatMap((name, at) => [at ? ", " : "", kernelNumber[side].has(name) ? link(name, "kernel" + kernelNumber[side].get(name)) : make("span", "", name)]);
}

function opCard(op, selected) {
  const card = make("div", selected ? "card selected" : "card");
  card.append(make("h3", "", make("span", "", link(op.ids, op.key), " ", make("code", "", op.name)), op.finding ? verdict(op.finding) : op.how === "new" || op.how === "gone" ? verdict(op.how) : ""));
  const rows = [factRow("matched", op.how === "new" || op.how === "gone" ? "no: " + op.how : "by " + op.how + (op.edited ? ", edited" : ""))];
  if (op.scope) rows.push(factRow("scope", op.scope));
  rows.push(factRow("line", link(...op.line_before), op.line_before[0] && op.line_after[0] ? " → " : "", link(...op.line_after)));
  rows.push(factRow("outcome", ...(op.outcome_before && op.outcome_before !== op.outcome_after ? [outcomeBadge(op.outcome_before), op.outcome_after ? " → " : ""] : []), op.outcome_after ? outcomeBadge(op.outcome_after) : ""));
  if (op.kernels_before.length) rows.push(factRow("kernels before", ...kernelLinks(op.kernels_before, "A")));
  if (op.kernels_after.length) rows.push(factRow("kernels after", ...kernelLinks(op.kernels_after, "B")));
  if (op.code) rows.push(factRow("machine code", op.code));
  const groups = [...(groupsOfOp.get(op.row) ?? [])];
  if (groups.length) rows.push(factRow("fusion", ...groups.slice(0, 8).flatMap((number, at) => [at ? ", " : "", link("group " + (number + 1), "group" + (number + 1))])));
  card.append(make("table", "", make("tbody", "", ...rows)));
  if (measured && op.amounts.some(Boolean)) card.append(costTable(op));
  if (op.ratio) card.append(make("div", "facts", "median per invocation: " + op.ratio[0].toFixed(2) + "x (" + op.ratio[1].toFixed(2) + " to " + op.ratio[2].toFixed(2) + ")"));
  card.append(...remarkLines(data.remarks.filter((remark) => remark.ops.includes(op.row))));
  return card;
}

function costTable(op) {
  const rows = data.metrics.flatMap((of, at) => {
    if (!op.amounts[at]) return [];
    const [before, after] = op.amounts[at];
    const words = [before, after, after - before].map((sum) => (sum ? amount(sum, of) : "0"));
    const cells = [words[0] + " → " + words[1], (after > before ? "+" : "") + words[2]].map((text) => make("td", "num", text));
    return [make("tr", "", make("th", "", of.name), ...cells)];
  });
  return make("table", "", make("tbody", "", ...rows));
}

function remarkLines(remarks) {
  const shown = remarks.slice(0, MOST_IN_DETAILS).map((remark) =>
    make("div", "facts wrap", verdict(remark.kind), " " + remark.pass_name + ": " + remark.text + (remark.count > 1 ? " (" + remark.count + " times)" : "")));
  if (remarks.length > MOST_IN_DETAILS) shown.push(make("div", "facts", (remarks.length - MOST_IN_DETAILS) + " more remarks in the table"));
  return shown;
}

function closeDetails() {
  hideDetails();
  markLines("", []);
}

function inspect(title, ...content) {
  const note = measured ? [make("p", "facts", chosenMetric().shown[0][1])] : [];
  showDetails(title, closeDetails, ...note, ...content);
}

function inspectLine(line) {
  const lineOps = line.use.ops.map((row) => data.ops[row]);
  const shown = lineOps.slice().sort((a, b) => Math.abs(changeOf(b) ?? 0) - Math.abs(changeOf(a) ?? 0)).slice(0, MOST_IN_DETAILS);
  const more = lineOps.length > shown.length ? [make("p", "facts", (lineOps.length - shown.length) + " more ops in the table")] : [];
  inspect(line.text.source.label + ":" + line.number, ...shown.map((op) => opCard(op, false)), ...more);
}

let selectedLine = "";

function selectLine(key) {
  const line = lineOf(key);
  if (!line) return false;
  showPanel("F" + line.text.index);
  selectedLine = key;
  markLines(key, line.use ? line.use.ops.flatMap((row) => linesOfOp(data.ops[row])) : []);
  if (line.use) inspectLine(line);
  else hideDetails();
  scrollToLine(key);
  return true;
}

function selectOp(op) {
  const [key, ...others] = linesOfOp(op);
  if (key) {
    showPanel("F0");
    markLines(key, others);
  } else showPanel("ops");
  inspect(op.ids, opCard(op, true));
  if (key) scrollToLine(key);
}
