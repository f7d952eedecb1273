// Formats amounts, per invocation or as sums, by the rules of tracemap/core/units.py. The data has sums over the run, in the
// unit of their metric.
let whole = data.totals ? 1 : 0; // sums of the whole run

const counts = new Intl.NumberFormat("en");
const COUNTS = [[1, ""], [1e6, "M"], [1e9, "G"], [1e12, "T"]];
const STEPS = {
  ns: [[1, "ns"], [1e3, "µs"], [1e6, "ms"], [1e9, "s"]],
  bytes: [[1, "B"], [2 ** 10, "KiB"], [2 ** 20, "MiB"], [2 ** 30, "GiB"], [2 ** 40, "TiB"]],
};

// Rounds halves to even, as Python does.
function fixed(value, places) {
  const doubled = value * 2 ** (places + 1); // odd only where a tie is possible
  if (!Number.isInteger(doubled) || doubled % 2 === 0) return value.toFixed(places);
  const below = Math.floor(value * 10 ** places);
  return ((below % 2 ? below + 1 : below) / 10 ** places).toFixed(places);
}

function threeDigits(value) {
  const places = [2, 1, 0].find((digits) => !digits || Number(fixed(Math.abs(value), digits)) < 10 ** (3 - digits));
  return fixed(value, places);
}

// Numbers with a fraction, without a unit prefix.
function fraction(value) {
  if (Math.abs(value) < 0.0005) return value > 0 ? "<0.001" : ">-0.001";
  if (Math.abs(value) < 0.9995) return fixed(value, 3);
  return Math.abs(value) < 999.5 ? threeDigits(value) : counts.format(Number(fixed(value, 0)));
}

function quantity(value, unit) {
  const steps = STEPS[unit] ?? COUNTS;
  let at = 0;
  while (at + 1 < steps.length && Math.round(Math.abs(value) / steps[at][0]) >= steps[at + 1][0] / steps[at][0]) at++;
  const [size, name] = steps[at];
  const unscaled = () => (!Number.isInteger(value) ? fraction(value) : steps === COUNTS ? counts.format(value) : String(value));
  return ((at ? threeDigits(value / size) : unscaled()) + " " + name).trim();
}

const percent = (value) => (value && Math.abs(value) < 0.05 ? (value > 0 ? "<0.1" : ">-0.1") : fixed(value, 1));
const share = (part, of) => (of ? percent((100 * part) / of) + " %" : "–");

// A sum of a metric; an amount of a single call or invocation.
const amount = (sum, of) => quantity(sum / of.shown[whole][0], of.shown_unit);
const single = (value, of) => quantity(value / of.scale, of.shown_unit);
const inAll = (sum, of) => sum + " " + of.unit + " in all";
const callsText = (number) => quantity(number / data.calls[whole], "count");
const callsWords = (number) => callsText(number) + (callsText(number) === "1" ? " call" : " calls") + (whole ? "" : " per invocation");

const chosenMetric = () => data.metrics[metric];
const basisOf = (of) => of.name + ", " + of.shown[whole][1];

function amountCell(sum) {
  const cell = make("td", "num", isKnown(sum) ? amount(sum, chosenMetric()) : "–");
  if (isKnown(sum)) cell.title = inAll(sum, chosenMetric());
  return cell;
}

function singleCell(value) {
  const cell = make("td", "num", isKnown(value) ? single(value, chosenMetric()) : "–");
  if (isKnown(value)) cell.title = value + " " + chosenMetric().unit;
  return cell;
}

const shareCell = (sum) => make("td", "num", isKnown(sum) ? share(sum, chosenMetric().work) : "–");

const plural = (count, word) => count + " " + word + (count === 1 ? "" : "s");
