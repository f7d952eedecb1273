// A text in blocks of lines. Those near what is in view are dressed: coloured, and with what else a page shows of lines;
// of all others there is the plain text, which takes no time. `draw` makes what stands before a line; null: nothing.
// `tokensOf` tells what of a line has which colour.
// The lines of a block; what else stands in it has no anchor.
const rowsOf = (block) => [...block.children].filter((row) => row.id);

class Blocks {
  constructor(panel, tokensOf, draw = null) {
    this.elements = [...panel.querySelectorAll(".chunk")];
    this.tokensOf = tokensOf;
    this.draw = draw;
    this.dressed = new Map(); // block -> what takes its colours away
    const near = new IntersectionObserver((entries) => {
      for (const entry of entries) entry.isIntersecting ? this.dress(entry.target) : this.undress(entry.target);
    }, { root: panel, rootMargin: "100% 0px" });
    for (const element of this.elements) near.observe(element);
  }

  dress(block) {
    if (!block || this.dressed.has(block)) return;
    const rows = rowsOf(block);
    this.dressed.set(block, colour(rows.map((row) => row.lastElementChild), rows.map(this.tokensOf)));
    if (this.draw) for (const row of rows) row.prepend(this.draw(row));
  }

  undress(block) {
    if (!this.dressed.has(block)) return;
    this.dressed.get(block)();
    this.dressed.delete(block);
    if (this.draw) for (const row of rowsOf(block)) row.firstElementChild.remove();
  }

  // Anew, when what is drawn before lines has changed.
  repaint() {
    for (const block of this.dressed.keys()) {
      for (const row of rowsOf(block)) row.firstElementChild.replaceWith(this.draw(row));
    }
  }

  dressAll() {
    for (const block of this.elements) this.dress(block);
  }
}
