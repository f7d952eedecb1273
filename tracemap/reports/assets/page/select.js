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

function inspectLine(line) {
  const use = line.use;
  const cost = (id) => costOf(ops.get(id))?.attributed ?? -1;
  const opIds = use.ops.concat(use.part_ops).sort((a, b) => cost(b) - cost(a));
  const content = cards(opIds, ops, (op) => opCard(op, false));
  if (use.sites.length) content.push(make("h3", "", use.sites.length + (use.sites.length === 1 ? " dispatch" : " dispatches")));
  content.push(...cards(use.sites, sites, (site) => siteCard(site, false, opIds.length === 1 ? opIds[0] : "")));
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
  if (panels.some((panel) => panel.id === name)) showPanel(name);
  else if (selectLine(name)) return;
  else if (/^kernel\d/.test(name)) showPanel("kernels");
  else if (ops.has(name)) selectOp(name);
  else if (sites.has(name)) selectSite(name);
}
