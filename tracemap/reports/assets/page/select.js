// Selection of a line, an op or a dispatch site: marks its lines and shows its details.
let selectedLine = "";

function closeDetails() {
  hideDetails();
  markLines("", []);
}

// Shows details, with the basis of their numbers.
function inspect(title, ...content) {
  const note = measured ? [make("p", "facts", basisOf(chosenMetric()))] : [];
  showDetails(title, closeDetails, ...note, ...content);
}

// The cost of a line: its total, by pass where the data says so, and by kernel.
function lineCosts(line) {
  const use = line.use;
  if (!measured || !use.costs.length) return use.remark ? [make("p", "", use.remark)] : [];
  const [attributed, inclusive] = use.costs[metric];
  const isPython = line.source.language === "python";
  const rows = [["total", isPython || !attributed ? inclusive : attributed], ...passCosts(use)];
  if (isPython && attributed !== inclusive) rows.push(["self", attributed]);
  if (!isPython && attributed) rows.push(["whole dispatches", inclusive]);
  const total = table(...rows.map((row) => costRow(...row)));
  total.classList.add("totals");
  return [total, ...kernelTable(use, rows[0][1])];
}

const PASSES = ["forward", "backward", "recompute", "optimizer", "no pass"];

function passCosts(use) {
  const sums = new Map();
  for (const op of use.ops.map((id) => ops.get(id))) {
    const cost = op ? costOf(op)?.attributed ?? 0 : 0;
    const name = op?.pass_name || "no pass";
    if (cost) sums.set(name, (sums.get(name) ?? 0) + cost);
  }
  const isTraining = [...sums.keys()].some((name) => name !== "no pass");
  return isTraining ? [...sums].sort(([a], [b]) => PASSES.indexOf(a) - PASSES.indexOf(b)) : [];
}

// The cost of a line's ops in each kernel, and the op that costs most there. Lines of calls and functions have the whole
// cost of the dispatches inside.
function costsByKernel(use) {
  const kernels = new Map();
  const add = (site, cost, op) => {
    const entry = kernels.get(site.kernel) ?? { name: site.kernel, cost: 0, op: "", most: 0 };
    entry.cost += cost;
    if (cost > entry.most) Object.assign(entry, { op, most: cost });
    kernels.set(site.kernel, entry);
  };
  const members = use.ops.flatMap((op) => (ops.get(op)?.sites ?? []).map((id) => [op, sites.get(id)]));
  for (const [op, site] of members) add(site, ofMetric(site.members.find((member) => member.op === op)?.attributed ?? []) ?? 0, op);
  if (!members.length) for (const site of use.sites.map((id) => sites.get(id))) add(site, costOf(site)?.total ?? 0, "");
  return [...kernels.values()].filter(({ cost }) => cost > 0).sort((a, b) => b.cost - a.cost);
}

const KERNELS_SHOWN = 8;

function kernelTable(use, total) {
  const found = costsByKernel(use);
  const row = ({ name, cost, op }) => {
    const number = kernelNumber.get(name);
    const anchor = number === undefined ? "" : "kernel" + number + (op ? "-" + op : "");
    return make("tr", "", make("td", "mono", link(name, anchor)), amountCell(cost), make("td", "num", share(cost, total)));
  };
  if (!found.length) return [];
  const parts = [make("h3", "", "by kernel"), make("p", "facts", "Click a kernel for its code."), table(...found.slice(0, KERNELS_SHOWN).map(row))];
  const rest = total - found.reduce((sum, { cost }) => sum + cost, 0);
  if (rest > 0) parts.push(make("p", "facts", "The rest, " + costWords(rest) + ", is in copies and fills."));
  if (rest < 0) parts.push(make("p", "facts", "Other lines call some of these ops, too: kernels have their whole cost."));
  if (found.length > KERNELS_SHOWN) parts.push(folded(plural(found.length - KERNELS_SHOWN, "more kernel"), false, table(...found.slice(KERNELS_SHOWN).map(row))));
  return parts;
}

function folded(words, open, ...content) {
  const part = make("details", "part", make("summary", "", words), ...content);
  part.open = open;
  return part;
}

function inspectLine(line) {
  const use = line.use;
  const cost = (id) => costOf(ops.get(id))?.attributed ?? -1;
  const opIds = use.ops.concat(use.part_ops).sort((a, b) => cost(b) - cost(a));
  const content = lineCosts(line);
  const open = !measured || !use.costs.length;
  if (opIds.length) content.push(folded(plural(opIds.length, "op"), open, ...cards(opIds, ops, (op) => opCard(op, false))));
  const siteWords = use.sites.length + (use.sites.length === 1 ? " dispatch" : " dispatches");
  if (use.sites.length) content.push(folded(siteWords, open, ...cards(use.sites, sites, (site) => siteCard(site, false, opIds.length === 1 ? opIds[0] : ""))));
  inspect(line.source.label + ":" + line.number, ...content);
}

function selectLine(key) {
  const line = lineOf(key);
  if (!line) return false;
  showPanel("F" + line.index);
  scrollToLine(key);
  selectedLine = key;
  markLines(key, line.use?.sites.length <= LIMIT ? relatedTo(line.use.sites) : []);
  if (line.use) inspectLine(line);
  else hideDetails();
  scrollToLine(key); // again, as the details took space
  return true;
}

function reveal(keys) {
  const here = keys.filter((key) => panels[view].id === "F" + lineOf(key).index);
  const key = here[0] ?? keys[0];
  if (!key) return;
  showPanel("F" + lineOf(key).index);
  scrollToLine(key);
  return key;
}

function selectOp(id) {
  const op = ops.get(id);
  const key = reveal(linesOfOp(id));
  markLines(key, relatedTo(op.sites));
  inspect(id, opCard(op, true), ...cards(op.sites, sites, (site) => siteCard(site, false, id)));
  if (key) scrollToLine(key);
}

function selectSite(id) {
  const site = sites.get(id);
  const members = [...site.members].sort((a, b) => b.root - a.root);
  const key = reveal(members.flatMap((member) => linesOfOp(member.op)));
  markLines(key, relatedTo([id]));
  inspect(id, siteCard(site, true, ""), ...cards(site.members.map((member) => member.op), ops, (op) => opCard(op, false)));
  if (key) scrollToLine(key);
}

// Addresses: #overview, #F0, #F0L12, #op12, #site3

function follow() {
  const name = named();
  if (name.startsWith("kernel")) closeDetails(); // the code needs the width
  if (panels.some((panel) => panel.id === name)) showPanel(name);
  else if (selectLine(name)) return;
  else if (/^kernel\d/.test(name)) showPanel("kernels");
  else if (ops.has(name)) selectOp(name);
  else if (sites.has(name)) selectSite(name);
}
