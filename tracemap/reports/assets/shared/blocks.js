// A text in blocks of lines. Those near what is in view are dressed: coloured, and with what else a page shows of lines;
// of all others there is the plain text, which takes no time. `draw` makes what stands before a line; null: nothing.
class Blocks {
  constructor(panel, language, draw = null) {
    this.elements = [...panel.querySelectorAll(".chunk")];
    this.language = language;
    this.draw = draw;
    this.dressed = new Map(); // block -> what takes its colours away
    this.open = [""]; // of the lines of Python up to here
    this.codes = [];
    const near = new IntersectionObserver((entries) => {
      for (const entry of entries) entry.isIntersecting ? this.dress(entry.target) : this.undress(entry.target);
    }, { root: panel, rootMargin: "100% 0px" });
    for (const element of this.elements) near.observe(element);
  }

  dress(block) {
    if (!block || this.dressed.has(block)) return;
    const rows = [...block.children];
    this.dressed.set(block, colour(rows.map((row) => row.lastElementChild), this.tokensOf(block, rows)));
    if (this.draw) for (const row of rows) row.prepend(this.draw(row));
  }

  undress(block) {
    if (!this.dressed.has(block)) return;
    this.dressed.get(block)();
    this.dressed.delete(block);
    if (this.draw) for (const row of block.children) row.firstElementChild.remove();
  }

  // Anew, when what is drawn before lines has changed.
  repaint() {
    for (const block of this.dressed.keys()) {
      for (const row of block.children) row.firstElementChild.replaceWith(this.draw(row));
    }
  }

  dressAll() {
    for (const block of this.elements) this.dress(block);
  }

  tokensOf(block, rows) {
    const lines = rows.map((row) => row.textContent);
    if (this.language !== "python") return lines.map((line) => ofMlir(line, 0, []));
    const first = this.elements.indexOf(block) && this.lines.indexOf(rows[0]);
    return lines.map((line, at) => pythonLine(line, this.openAt(first + at))[0]);
  }

  get lines() {
    if (!this.codes.length) this.codes = this.elements.flatMap((block) => [...block.children]);
    return this.codes;
  }

  openAt(number) {
    for (let at = this.open.length; at <= number; at++) {
      this.open.push(pythonLine(this.lines[at - 1].lastElementChild.textContent, this.open[at - 1])[1]);
    }
    return this.open[number];
  }
}
