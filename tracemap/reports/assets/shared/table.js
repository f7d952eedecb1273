// A table with a filter, sorted by a column. Only rows near the view are in the document, all of one height, so that fifty
// thousand rows are as fast as fifty.
const natural = new Intl.Collator("en", { numeric: true });
const TABLE_ROW = 23; // pixels, as in look.css
const CELL_PADDING = 18; // pixels, with the line between cells
const WINDOW = 8; // rows drawn above and below the view
const ALL_DRAWN = 50; // tables up to this many rows are drawn completely
const MOST_PRINTED = 5000; // rows on paper
const WORDS_AT_ONCE = 4000; // rows indexed for the filter at once

class Table {
  // `work`: a row's amount of the metric, without what other rows count, too; undefined if rows overlap.
  constructor(panel, rows, columns, sorted, work) {
    Object.assign(this, { panel, rows, all: columns, columns: columns.filter((entry) => !entry.isMore), work });
    this.sorted = Math.max(0, this.columns.indexOf(columns[sorted]));
    this.key = panel.id;
    this.falling = this.columns[this.sorted].numeric;
    this.drawn = "";
    this.shown = [];
    this.order = null;
    this.filter = make("input");
    this.filter.type = "search";
    this.filter.placeholder = "filter: all words must match";
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
    this.table = make("table", "", make("thead", "", this.head), this.body);
    this.makeHead();
    panel.addEventListener("show", () => this.draw());
    panel.addEventListener("scroll", () => this.paint(), { passive: true });
    new ResizeObserver(() => this.paint()).observe(panel);
    addEventListener("beforeprint", () => this.paintForPrint());
    addEventListener("afterprint", () => this.draw(true));
    this.more = this.columns.length < columns.length ? makeButton("all columns", () => keep(this.key + ".columns", this.showColumns(this.columns === this.all ? "" : "all"))) : "";
    panel.append(make("div", "filter", this.filter, this.more, this.count, this.basis), this.table);
    if (this.more) setting(this.key + ".columns", "", (which) => this.showColumns(which));
    setting(this.key + ".filter", "", (words) => this.filterBy(words));
    setting(this.key + ".sort", this.sortText(), (text) => this.sortBy(text));
  }

  makeHead() {
    this.head.replaceChildren(...this.columns.map((entry, index) => this.headCell(entry, index)));
  }

  // Shows all columns, or those that are shown at first; returns "all" or "".
  showColumns(which) {
    const [sorted, isAll] = [this.columns[this.sorted], which === "all"];
    if (isAll !== (this.columns === this.all)) {
      this.columns = isAll ? this.all : this.all.filter((entry) => !entry.isMore);
      this.sorted = Math.max(0, this.columns.indexOf(sorted));
      this.more.textContent = isAll ? "fewer columns" : "all columns";
      this.makeHead();
      this.drawn = "";
      this.draw();
    }
    return isAll ? "all" : "";
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

  // The heading of the sort column, with the prefix `-` for descending order.
  sortText() {
    return (this.falling ? "-" : "") + this.columns[this.sorted].label;
  }

  sortBy(text) {
    const named = (entry) => entry.label === text.replace(/^-/, "");
    if (this.all.some((entry) => entry.isMore && named(entry))) this.showColumns("all");
    const index = this.columns.findIndex(named);
    if (index >= 0) [this.sorted, this.falling] = [index, text.startsWith("-")];
    this.draw();
    return this.sortText();
  }

  words(row) {
    row.words ??= this.all.map((entry) => String(entry.value(row) ?? "")).join(" ").toLowerCase();
    return row.words;
  }

  // Indexes the words of all rows in the background, some rows at a time.
  prepareWords(from = 0) {
    const end = Math.min(this.rows.length, from + WORDS_AT_ONCE);
    for (let at = from; at < end; at++) this.words(this.rows[at]);
    if (end < this.rows.length) setTimeout(() => this.prepareWords(end));
  }

  begin() {
    this.columnWidths();
    setTimeout(() => this.prepareWords());
  }

  // All rows in order; cached, so that typing in the filter does not sort again.
  ordered() {
    const state = [metric, this.sorted, this.falling].join("|");
    if (this.order?.state === state) return this.order.rows;
    const value = this.columns[this.sorted].value;
    const sign = this.falling ? -1 : 1;
    const isEmpty = (key) => key === null || key === undefined || key === "";
    const keyed = this.rows.map((row) => [value(row), row]);
    // Unknown values come last in both directions; ties keep the order of the program.
    keyed.sort(([x], [y]) => {
      if (isEmpty(x) || isEmpty(y)) return isEmpty(x) - isEmpty(y);
      return sign * (typeof x === "number" ? x - y : natural.compare(x, y));
    });
    this.order = { state, rows: keyed.map(([, row]) => row) };
    return this.order.rows;
  }

  // If the new filter extends the last one, searches only the last result.
  matching(text) {
    const ordered = this.ordered();
    const before = this.matched?.of === ordered && text.startsWith(this.matched.text) ? this.shown : ordered;
    this.matched = { of: ordered, text };
    const words = text.split(/\s+/).filter(Boolean);
    if (!words.length) return ordered;
    if (!this.prepared) this.rows.forEach((row) => this.words(row));
    this.prepared = true;
    return words.reduce((rows, word) => rows.filter((row) => row.words.includes(word)), before);
  }

  draw(again = false) {
    const state = [metric, whole, this.filter.value, this.sorted, this.falling].join("|");
    if (this.panel.hidden) return;
    if (state === this.drawn && !again) return this.paint();
    if (!this.drawn) this.begin();
    this.drawn = state;
    this.shown = this.matching(this.filter.value.toLowerCase());
    this.count.textContent = this.countWords();
    this.basis.textContent = measured ? basisOf(chosenMetric()) : "";
    this.table.setAttribute("aria-rowcount", this.shown.length + 1);
    this.first = -1;
    this.paint();
    [...this.head.children].forEach((cell, index) => {
      const { label, of } = this.columns[index];
      cell.title = [DEFINITIONS[label], of?.()].filter(Boolean).join("; ");
      cell.setAttribute("aria-sort", index === this.sorted ? (this.falling ? "descending" : "ascending") : "none");
    });
  }

  // The number of shown rows, and the cost of the others.
  countWords() {
    const words = this.shown.length + " of " + this.rows.length + " shown";
    const hidden = this.rows.length - this.shown.length;
    if (!hidden) return words;
    const more = words + ", " + hidden + " filtered out";
    if (!measured || !this.work) return more;
    const sum = (rows) => rows.reduce((total, row) => total + (this.work(row) ?? 0), 0);
    if (this.whole?.of !== metric) this.whole = { of: metric, sum: sum(this.rows) };
    return more + " (" + share(this.whole.sum - sum(this.shown), chosenMetric().work) + " of the cost)";
  }

  // Draws the rows near the view, unless they are drawn already.
  paint() {
    if (this.panel.hidden || !this.drawn) return;
    const [top, height] = [this.panel.scrollTop, this.panel.clientHeight];
    const begin = Math.min(Math.floor(top / TABLE_ROW), this.shown.length);
    const end = Math.min(Math.ceil((top + height) / TABLE_ROW), this.shown.length);
    if (this.first >= 0 && this.first <= begin && this.last >= end) return;
    const spare = this.shown.length <= ALL_DRAWN ? ALL_DRAWN : WINDOW;
    this.drawRows(Math.max(0, begin - spare), Math.min(this.shown.length, end + spare));
    this.body.prepend(...this.space(this.first));
    this.body.append(...this.space(this.shown.length - this.last));
  }

  drawRows(first, last) {
    [this.first, this.last] = [first, last];
    this.body.replaceChildren(...this.shown.slice(first, last).map((row, at) => this.drawRow(row, first + at)));
  }

  // Paper has no view: draws all rows, up to a limit.
  paintForPrint() {
    if (this.panel.hidden || !this.drawn) return;
    this.drawRows(0, Math.min(this.shown.length, MOST_PRINTED));
    if (this.last < this.shown.length) this.count.textContent = this.countWords() + "; the first " + MOST_PRINTED + " are printed";
  }

  drawRow(row, at) {
    const drawn = make("tr", "", ...this.columns.map((entry) => entry.cell(row)));
    drawn.setAttribute("aria-rowindex", at + 2);
    if (measured && this.work && !this.work(row)) {
      drawn.classList.add("free");
      if (at && this.work(this.shown[at - 1])) drawn.classList.add("first-free");
    }
    return drawn;
  }

  // A spacer in place of rows that are not drawn.
  space(rows) {
    if (!rows) return [];
    const row = make("tr", "space");
    row.setAttribute("aria-hidden", "true");
    row.style.height = rows * TABLE_ROW + "px";
    return [row];
  }

  // Sets widths from the longest text of all rows: the browser need not measure cells, and columns do not move.
  columnWidths() {
    const widths = this.columns.map((entry) => {
      if (entry.numeric) return Math.max(11, entry.label.length + 4);
      let longest = entry.label.length + 3;
      for (const row of this.rows) longest = Math.max(longest, String((entry.letters ?? entry.value)(row) ?? "").length);
      return Math.min(entry.most ?? 120, longest);
    });
    const columns = widths.map((width) => {
      const column = make("col");
      column.style.width = "calc(" + width + "ch + " + CELL_PADDING + "px)";
      return column;
    });
    this.table.style.width = "max(100%, calc(" + widths.reduce((sum, width) => sum + width, 0) + "ch + " + widths.length * CELL_PADDING + "px))";
    this.table.querySelector("colgroup")?.remove();
    this.table.prepend(make("colgroup", "", ...columns));
  }
}
