// What the other parts work on: sites by id, the metric that is chosen, and how amounts, [exact, text, share], are shown.
const sites = new Map(data.sites.map((site) => [site.id, site]));
const kernelNumber = new Map(data.kernels.map((kernel, index) => [kernel.name, index]));
const measured = data.metrics.length > 0;
let metric = data.metric; // -1 without a run

const ofMetric = (values) => (metric >= 0 && values.length ? values[metric] : null);
const costOf = (row) => ofMetric(row.costs);
const number = (amount) => (amount ? amount[0] : null);
const counts = new Intl.NumberFormat("en");

function amountCell(amount) {
  const cell = make("td", "num", amount ? amount[1] : "–");
  if (amount) cell.title = String(amount[0]);
  return cell;
}
const shareCell = (amount) => make("td", "num", amount ? amount[2] : "–");

// A share of all work in twentieths of the bar; whatever is not nothing shows.
function barSteps(amount) {
  const whole = measured ? data.metrics[metric].work : 0;
  return amount && amount[0] > 0 && whole > 0 ? Math.min(20, Math.max(1, Math.round((20 * amount[0]) / whole))) : 0;
}
const bar = (amount) => make("b", "bar w" + barSteps(amount));

function fateBadge(op) {
  const badge = make("span", "fate", op.fate);
  badge.classList.add("fate-" + op.fate);
  badge.title = op.reason;
  return badge;
}
