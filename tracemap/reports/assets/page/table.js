// A table that is filtered by words and sorted by its columns.
const natural = new Intl.Collator("en", { numeric: true });
const PAGE = 300; // rows drawn at once

class Table {
  constructor(panel, rows, columns, sorted) {
    this.panel = panel;
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
    this.filter.addEventListener("input", () => this.draw());
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
    panel.append(make("div", "filter", this.filter, this.count), make("table", "", make("thead", "", this.head), this.body), this.more);
  }

  headCell(entry, index) {
    const sort = () => {
      this.falling = this.sorted === index ? !this.falling : entry.numeric;
      this.sorted = index;
      this.draw();
    };
    const cell = make("th", entry.numeric ? "num" : "", makeButton(entry.label, sort));
    cell.scope = "col";
    return cell;
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
    const state = [metric, this.filter.value, this.sorted, this.falling, this.limit].join("|");
    if (state === this.drawn || this.panel.hidden) return;
    this.drawn = state;
    const rows = this.ordered();
    const shown = rows.slice(0, this.limit);
    this.body.replaceChildren(...shown.map((row) => make("tr", "", ...this.columns.map((entry) => entry.cell(row)))));
    this.count.textContent = shown.length + " of " + this.rows.length + " shown" + (rows.length > shown.length ? ", " + rows.length + " match" : "");
    this.more.hidden = rows.length <= shown.length;
    [...this.head.children].forEach((cell, index) => {
      cell.setAttribute("aria-sort", index === this.sorted ? (this.falling ? "descending" : "ascending") : "none");
    });
  }
}
