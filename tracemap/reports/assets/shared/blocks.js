// A text in blocks of lines. Blocks near the view are dressed: coloured, and with a gutter. Others are plain text, which
// costs no time. `draw(row)` makes the gutter; null: no gutter. `tokensOf(row)` gives the coloured ranges of a line.

// The lines of a block; other rows have no anchor.
const rowsOf = (block) => [...block.children].filter((row) => row.id);

class Blocks {
  constructor(panel, tokensOf, draw = null) {
    this.elements = [...panel.querySelectorAll(".chunk")];
    this.tokensOf = tokensOf;
    this.draw = draw;
    this.dressed = new Map(); // block -> function that removes its colours
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

  // Draws the gutters again.
  repaint() {
    for (const block of this.dressed.keys()) {
      for (const row of rowsOf(block)) row.firstElementChild.replaceWith(this.draw(row));
    }
  }

  dressAll() {
    for (const block of this.elements) this.dress(block);
  }
}
