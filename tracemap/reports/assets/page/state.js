// Data of the other scripts: rows by id, and the selected metric.
data.sources.forEach((source, index) => Object.assign(source, data.source_rows[index]));
data.ops = allUnpacked("OpRow", data.ops);
data.sites = allUnpacked("SiteRow", data.sites);
for (const site of data.sites) site.members = allUnpacked("MemberRow", site.members);
data.scopes = allUnpacked("ScopeRow", data.scopes);
const ops = new Map(data.ops.map((op) => [op.id, op]));
// An op's name without the dialect that a framework's importer uses.
const shortName = (op) => op.name.replace(/^(stablehlo|torch\.aten|onnx)\./, "");
// The source of an op: its line of Python, else its ONNX node, else its line of the model; a text and an anchor.
const nodeOrLine = (op) => (op.node ? [op.node, op.line[1]] : op.line);
const sourceOf = (op) => (op.python[0] ? op.python : nodeOrLine(op));
const titleOf = (op) => op.node || shortName(op);
const sites = new Map(data.sites.map((site) => [site.id, site]));
const kernelNumber = new Map(data.kernels.map((kernel, index) => [kernel.name, index]));
const measured = data.metrics.length > 0;
let metric = data.metric; // -1 without a run

const ofMetric = (values) => (metric >= 0 && values.length ? values[metric] : null);

// The cost of an op or a dispatch site, unpacked at the first access, as most never are.
function costOf(row) {
  const cost = ofMetric(row.costs);
  if (!Array.isArray(cost)) return cost;
  return (row.costs[metric] = unpacked(row.members ? "SiteCostRow" : "OpCostRow", cost));
}

// A share of the measured cost in twentieths of the bar; every cost above 0 shows.
function barSteps(sum) {
  const work = measured ? data.metrics[metric].work : 0;
  return sum > 0 && work > 0 ? Math.min(20, Math.max(1, Number(fixed((20 * sum) / work, 0)))) : 0;
}
const bar = (sum) => make("b", "bar w" + barSteps(sum));

function outcomeBadge(op) {
  const badge = make("span", "outcome", op.outcome);
  badge.classList.add("outcome-" + op.outcome);
  badge.title = op.reason;
  return badge;
}
