// A list of rows of one height. Only rows in view are in the document, so ten thousand are as fast as ten.
const ROW_HEIGHT = 18; // pixels, as in page.css
const SPARE_ROWS = 15; // above and below the view

class Rows {
  constructor(box, draw, pick) {
    this.box = box;
    this.draw = draw;
    this.count = 0;
    this.slice = make("div", "slice");
    this.spacer = make("div", "spacer", this.slice);
    box.replaceChildren(this.spacer);
    box.addEventListener("scroll", () => this.paint(), { passive: true });
    box.addEventListener("click", (event) => {
      const row = event.target.closest("[data-row]");
      if (row && !event.target.closest("a") && !String(getSelection())) pick(Number(row.dataset.row));
    });
    box.addEventListener("keydown", (event) => {
      const by = { ArrowDown: 1, ArrowUp: -1, PageDown: 20, PageUp: -20 }[event.key];
      if (!by) return;
      event.preventDefault();
      this.at = Math.min(this.count - 1, Math.max(0, (this.at ?? -1) + by));
      pick(this.at);
    });
  }

  set(count, columns) {
    this.count = count;
    this.at = -1;
    this.spacer.style.height = count * ROW_HEIGHT + "px";
    this.spacer.style.width = "calc(" + columns + "ch + 198px)";
    this.box.scrollTop = 0;
    this.paint();
  }

  paint() {
    const first = Math.max(0, Math.floor(this.box.scrollTop / ROW_HEIGHT) - SPARE_ROWS);
    const last = Math.min(this.count, Math.ceil((this.box.scrollTop + this.box.clientHeight) / ROW_HEIGHT) + SPARE_ROWS);
    this.slice.style.transform = "translateY(" + first * ROW_HEIGHT + "px)";
    const rows = [];
    for (let number = first; number < last; number++) {
      const row = this.draw(number);
      row.dataset.row = number;
      rows.push(row);
    }
    this.slice.replaceChildren(...rows);
  }

  reveal(number) {
    this.at = number;
    const top = number * ROW_HEIGHT;
    if (top < this.box.scrollTop || top + ROW_HEIGHT > this.box.scrollTop + this.box.clientHeight) {
      this.box.scrollTop = Math.max(0, top - this.box.clientHeight / 3);
    }
  }
}
