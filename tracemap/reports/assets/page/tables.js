// A table that is filtered by words and sorted by its columns.
const natural = new Intl.Collator("en", { numeric: true });
const PAGE = 300; // rows drawn at once

class Table {
  constructor(panel, rows, columns, sorted) {
    this.panel = panel;
    this.key = panel.id;
    this.rows = rows;
    this.columns = columns;
    this.sorted = sorted;
    this.falling = columns[sorted].numeric;
    this.limit = PAGE;
    this.drawn = "";
    this.filter = make("input");
    this.filter.type = "search";
    this.filter.placeholder = "filter: words, all must occur";
    this.filter.setAttribute("aria-label", "Filter the table");
    this.filter.addEventListener("input", () => {
      this.draw();
      keep(this.key + ".filter", this.filter.value);
    });
    this.basis = make("span");
    this.count = make("span");
    this.count.setAttribute("role", "status");
    this.head = make("tr");
    this.body = make("tbody");
    this.more = makeButton("show all", () => {
      this.limit = Infinity;
      this.draw();
    }, "more");
    columns.forEach((entry, index) => this.head.append(this.headCell(entry, index)));
    panel.addEventListener("show", () => this.draw());
    setting(this.key + ".filter", "", (words) => this.filterBy(words));
    setting(this.key + ".sort", this.sortText(), (text) => this.sortBy(text));
    panel.append(make("div", "filter", this.filter, this.count, this.basis), make("table", "", make("thead", "", this.head), this.body), this.more);
  }

  headCell(entry, index) {
    const sort = () => {
      this.falling = this.sorted === index ? !this.falling : entry.numeric;
      this.sorted = index;
      this.draw();
      keep(this.key + ".sort", this.sortText());
    };
    const cell = make("th", entry.numeric ? "num" : "", makeButton(entry.label, sort));
    cell.scope = "col";
    return cell;
  }

  filterBy(words) {
    this.filter.value = words;
    this.draw();
    return words;
  }

  // The heading of the column, `-` before it where the largest come first.
  sortText() {
    return (this.falling ? "-" : "") + this.columns[this.sorted].label;
  }

  sortBy(text) {
    const index = this.columns.findIndex((entry) => entry.label === text.replace(/^-/, ""));
    if (index >= 0) [this.sorted, this.falling] = [index, text.startsWith("-")];
    this.draw();
    return this.sortText();
  }

  words(row) {
    row.words ??= this.columns.map((entry) => String(entry.value(row) ?? "")).join(" ").toLowerCase();
    return row.words;
  }

  ordered() {
    const wanted = this.filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const kept = this.rows.filter((row) => wanted.every((word) => this.words(row).includes(word)));
    const value = this.columns[this.sorted].value;
    const sign = this.falling ? -1 : 1;
    // What is unknown comes last, whichever way round; ties keep the order of the program.
    return kept.sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      if (x === null || y === null || x === "" || y === "") return (x === null || x === "") - (y === null || y === "");
      return sign * (typeof x === "number" ? x - y : natural.compare(x, y));
    });
  }

  draw() {
    const state = [metric, whole, this.filter.value, this.sorted, this.falling, this.limit].join("|");
    if (state === this.drawn || this.panel.hidden) return;
    this.drawn = state;
    const rows = this.ordered();
    const shown = rows.slice(0, this.limit);
    this.body.replaceChildren(...shown.map((row) => make("tr", "", ...this.columns.map((entry) => entry.cell(row)))));
    this.count.textContent = shown.length + " of " + this.rows.length + " shown" + (rows.length > shown.length ? ", " + rows.length + " match" : "");
    this.basis.textContent = measured ? basisOf(chosenMetric()) : "";
    this.more.hidden = rows.length <= shown.length;
    [...this.head.children].forEach((cell, index) => {
      cell.title = this.columns[index].of?.() ?? "";
      cell.setAttribute("aria-sort", index === this.sorted ? (this.falling ? "descending" : "ascending") : "none");
    });
  }
}

// The tables of ops, sites and scopes.
function callsCell(row) {
  const cell = make("td", "num", row.calls !== null ? callsText(row.calls) : row.load_time ? "not measured" : "–");
  if (row.calls !== null) cell.title = row.calls + " in all";
  return cell;
}
const numberCell = (value, unit) => make("td", "num", isKnown(value) ? quantity(value, unit) : "–");

// `of` says of what the numbers of a column are.
const column = (label, value, cell, numeric, of) => ({ label, value, cell, numeric, of });
const text = (label, value, cell) => column(label, value, cell ?? ((row) => make("td", "", value(row))), false);
const numbers = (label, count) => column(label, count, (row) => make("td", "num", String(count(row))), true);
const costs = (label, pick, cell, of) => column(label, (row) => pick(row) ?? null, (row) => cell(pick(row)), true, of);
const sums = (label, pick) => costs(label, pick, amountCell, () => basisOf(chosenMetric()));
const shares = (pick) => costs("share of work", pick, shareCell, () => "of the work of " + chosenMetric().name);
const calls = column("calls", (row) => row.calls, callsCell, true, () => (whole ? "in all" : "per invocation"));
const spreadOver = (one, key) => ["median", "p10", "p90"].map((label, at) =>
  costs(label + "/" + one, (row) => costOf(row)?.[key]?.[at], singleCell, () => chosenMetric().name + " of single " + one + "s"));

const SAMPLED = data.fields.OpCostRow.indexOf("sampled"); // of what is not unpacked yet
const opColumns = [
  text("op", (op) => op.id, (op) => make("td", "", link(op.id, op.id))),
  text("name", (op) => op.name, (op) => make("td", "mono", op.name)),
  text("line", (op) => op.line[0], (op) => make("td", "", link(...op.line))),
  text("python", (op) => op.python[0], (op) => make("td", "", link(...op.python))),
  ...(measured ? [
    calls,
    sums("attributed", (op) => costOf(op)?.attributed),
    shares((op) => costOf(op)?.attributed),
    ...(data.ops.some((op) => op.costs.some((cost) => cost[SAMPLED])) ? [
      sums("95 % from", (op) => costOf(op)?.sampled?.[0]),
      sums("to", (op) => costOf(op)?.sampled?.[1]),
      text("uncertain", (op) => (costOf(op)?.uncertain ? "~" : "")),
    ] : []),
    sums("inclusive", (op) => costOf(op)?.inclusive),
    sums("low", (op) => costOf(op)?.low),
    sums("high", (op) => costOf(op)?.high),
    ...spreadOver("invocation", "per_invocation"),
  ] : []),
  text("scope", (op) => op.scope),
  text("function", (op) => op.function),
  text("fate", (op) => op.fate, (op) => make("td", "", fateBadge(op))),
  numbers("sites", (op) => op.sites.length),
  text("kernel", (op) => op.kernels.join(" "), (op) => make("td", "mono", op.kernels.join(" "))),
  text("reason", (op) => op.reason, (op) => make("td", "text", op.reason)),
];

const siteColumns = [
  text("site", (site) => site.id, (site) => make("td", "", link(site.id, site.id))),
  text("kernel", (site) => site.kernel, (site) => make("td", "mono", site.kernel)),
  text("root", (site) => rootName(site), (site) => make("td", "", ...rootCell(site))),
  numbers("members", (site) => site.members.length),
  ...(measured ? [
    calls,
    sums("total", (site) => costOf(site)?.total),
    shares((site) => costOf(site)?.total),
    sums("disturbance", (site) => costOf(site)?.disturbance),
    ...spreadOver("call", "per_call"),
    costs("slowest/call", (site) => site.slowest_ns, (time) => numberCell(time, "ns")),
    column("imbalance", (site) => site.imbalance_percent, (site) => make("td", "num", isKnown(site.imbalance_percent) ? imbalanceText(site) : "–"), true),
    costs("tiles/call", tilesOf, (tiles) => numberCell(tiles, "count")),
  ] : []),
  text("function", (site) => site.function),
  text("path", (site) => site.path.join(" "), (site) => make("td", "", ...site.path.flatMap((id) => [link(id, ops.has(id) ? id : ""), " "]))),
  text("command", (site) => site.command),
  text("notes", (site) => site.remarks.join("; "), (site) => make("td", "text", site.remarks.join("; "))),
];

const rootOf = (site) => site.members.find((member) => member.root);
const rootName = (site) => ops.get(rootOf(site)?.op)?.name ?? "";
function rootCell(site) {
  const op = ops.get(rootOf(site)?.op);
  return op ? [link(op.id, op.id), " ", make("span", "mono", op.name), " ", link(...op.line)] : ["–"];
}

const scopeColumns = [
  column("scope", (row) => row.order, (row) => {
    const indent = make("span", "indent", "\u00a0".repeat(4 * Math.max(0, row.path.length - 1)));
    return make("td", "mono", indent, row.path.at(-1) ?? "(no scope)");
  }, false),
  numbers("ops", (row) => row.ops),
  ...(measured ? [
    sums("inclusive", (row) => ofMetric(row.inclusive)),
    shares((row) => ofMetric(row.inclusive)),
    column("bar", (row) => ofMetric(row.inclusive), (row) => make("td", "", bar(ofMetric(row.inclusive))), false),
    sums("own", (row) => ofMetric(row.attributed)),
  ] : []),
  text("path", (row) => row.path.join("/")),
];
data.scopes.forEach((row, order) => (row.order = order));

const tables = new Map();
function addTable(id, rows, columns, label) {
  const sorted = Math.max(0, columns.findIndex((entry) => entry.label === label));
  if (byId(id)) tables.set(id, new Table(byId(id), rows, columns, sorted));
}
addTable("ops", data.ops, opColumns, "attributed");
addTable("sites", data.sites, siteColumns, "total");
addTable("scopes", data.scopes, scopeColumns, "scope");
