// One search over all names of a page. The page defines `allNamed`, and `linesNamed` for lines such as `file:12`.
const MOST_FOUND = 50;
let entries = null; // made at the first search
let found = [];
let marked = 0;

// Exact matches first, then prefixes, then others, in the order of the program; lines of text come last.
function search(text) {
  entries ??= allNamed();
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return [];
  const matching = entries.filter((entry) => words.every((word) => entry.text.includes(word)));
  const rank = ({ label, isLast }) => (isLast ? 3 : label.toLowerCase() === words[0] ? 0 : label.toLowerCase().startsWith(words[0]) ? 1 : 2);
  return [...linesNamed(words[0]), ...[0, 1, 2, 3].flatMap((level) => matching.filter((entry) => rank(entry) === level))];
}

function mark(number) {
  const rows = [...byId("search-found").children];
  marked = Math.max(0, Math.min(rows.length - 1, number));
  rows.forEach((row, at) => row.setAttribute("aria-selected", String(at === marked)));
  rows[marked]?.scrollIntoView({ block: "nearest" });
  byId("search-words").setAttribute("aria-activedescendant", rows[marked]?.id ?? "");
}

function drawFound() {
  found = search(byId("search-words").value);
  byId("search-found").replaceChildren(...found.slice(0, MOST_FOUND).map((entry, number) => {
    const row = make("li", "", make("small", "", entry.kind), " ", make("code", "", entry.label), " ", make("span", "facts", entry.about));
    row.id = "found" + number;
    row.setAttribute("role", "option");
    row.addEventListener("click", () => openFound(number));
    return row;
  }));
  const more = found.length > MOST_FOUND ? ", first " + MOST_FOUND + " shown" : "";
  byId("search-count").textContent = byId("search-words").value.trim() ? found.length + " found" + more : "";
  mark(0);
}

function openFound(number) {
  if (!found[number]) return;
  byId("search").close();
  found[number].open();
}

function openSearch() {
  byId("search").showModal();
  byId("search-words").select();
  drawFound();
}

byId("search-words").addEventListener("input", drawFound);
byId("search-words").addEventListener("keydown", (event) => {
  const acts = { ArrowDown: () => mark(marked + 1), ArrowUp: () => mark(marked - 1), Enter: () => openFound(marked) };
  if (!Object.hasOwn(acts, event.key)) return;
  event.preventDefault();
  acts[event.key]();
});
byId("search-open").addEventListener("click", openSearch);
