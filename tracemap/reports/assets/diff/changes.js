// Costs before and after in the selected metric, and the signs and tints of changes.
const ofMetric = (amounts) => (metric >= 0 ? amounts[metric] ?? null : null);
const beforeOf = (row) => ofMetric(row.amounts)?.[0] ?? null;
const afterOf = (row) => ofMetric(row.amounts)?.[1] ?? null;
const changeOf = (row) => (ofMetric(row.amounts) ? afterOf(row) - beforeOf(row) : null);
const bySize = (rows) => rows.filter((row) => changeOf(row)).sort((a, b) => Math.abs(changeOf(b)) - Math.abs(changeOf(a)));

const costText = (sum) => (sum ? amount(sum, chosenMetric()) : "0");
const changeText = (sum) => (sum > 0 ? "+" : "") + costText(sum);
const shareText = (sum) => (sum > 0 ? "+" : "") + share(sum, chosenMetric().work);
const direction = (sum) => (sum > 0 ? "upward" : "downward");

// Five steps up and down, by the square root, so that a twentieth of the largest change still shows; empty for no change.
function tintOf(sum, largest) {
  if (!sum || !largest) return "";
  return (sum > 0 ? "up" : "down") + Math.max(1, Math.round(5 * Math.sqrt(Math.abs(sum) / largest)));
}
const largestOf = (rows) => rows.reduce((most, row) => Math.max(most, Math.abs(changeOf(row) ?? 0)), 0);

const outcomeBadge = (outcome) => make("span", "outcome outcome-" + outcome, outcome);
const verdict = (word) => make("span", "verdict " + word, word);

function paintBasis() {
  for (const note of document.querySelectorAll("[data-basis]")) note.textContent = basisOf(chosenMetric());
}
