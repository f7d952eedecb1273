// Columns of tables: what they are sorted by, and their cells.
function longCell(words) {
  const cell = make("td", "text", words);
  cell.title = words;
  return cell;
}
const numberCell = (value, unit) => make("td", "num", isKnown(value) ? quantity(value, unit) : "–");

// `of` says of what the numbers of a column are.
const column = (label, value, cell, numeric, of) => ({ label, value, cell, numeric, of });
const text = (label, value, cell) => column(label, value, cell ?? ((row) => make("td", "", value(row))), false);
// A column whose cells say more than what it is sorted by.
const asWideAs = (entry, letters) => ({ ...entry, letters });
const numbers = (label, count) => column(label, count, (row) => make("td", "num", String(count(row))), true);
