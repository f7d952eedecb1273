// A handle between two panes: dragging it, or the arrow keys, changes the size of a pane. Home, or a double click, restores
// the initial sizes.
const SPLIT_STEP = 24; // pixels per key
const SPLIT_LEAST = 90; // pixels of the smallest pane

class Splitter {
  // `isRow()`: whether the panes lie above each other; `resized()`: the pane that changes its size, and whether it grows
  // (1) or shrinks (-1) as the handle moves to the right or down; `most()`: its largest size in pixels; `set(pixels)`: sets
  // the size; "" is the initial one.
  constructor(handle, { isRow, resized, most, set }) {
    Object.assign(this, { handle, isRow, resized, most, set });
    handle.setAttribute("role", "separator");
    handle.tabIndex = 0;
    handle.title = "Drag, or use the arrow keys; Home restores the sizes";
    handle.addEventListener("pointerdown", (event) => this.begin(event));
    handle.addEventListener("dblclick", () => this.apply(null));
    handle.addEventListener("keydown", (event) => this.key(event));
    addEventListener("resize", () => this.describe());
    this.describe();
  }

  size() {
    const { width, height } = this.resized()[0].getBoundingClientRect();
    return this.isRow() ? height : width;
  }

  apply(pixels) {
    this.set(pixels === null ? "" : Math.round(Math.max(SPLIT_LEAST, Math.min(this.most(), pixels))) + "px");
    dispatchEvent(new Event("resize"));
  }

  describe() {
    this.handle.setAttribute("aria-orientation", this.isRow() ? "horizontal" : "vertical");
    this.handle.setAttribute("aria-valuemin", SPLIT_LEAST);
    this.handle.setAttribute("aria-valuemax", Math.max(SPLIT_LEAST, Math.round(this.most())));
    this.handle.setAttribute("aria-valuenow", Math.round(this.size()));
  }

  begin(event) {
    if (event.button) return;
    event.preventDefault();
    const place = (moved) => (this.isRow() ? moved.clientY : moved.clientX);
    const [from, size, grows] = [place(event), this.size(), this.resized()[1]];
    const move = (moved) => this.apply(size + grows * (place(moved) - from));
    const end = () => this.handle.removeEventListener("pointermove", move);
    this.handle.setPointerCapture(event.pointerId);
    this.handle.addEventListener("pointermove", move);
    this.handle.addEventListener("pointerup", end, { once: true });
    this.handle.addEventListener("pointercancel", end, { once: true });
    this.handle.focus({ preventScroll: true });
  }

  key(event) {
    const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if ((!by && event.key !== "Home") || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    this.apply(by ? this.size() + by * this.resized()[1] * SPLIT_STEP : null);
  }
}

// The handles of three panes next to each other, of which the middle one takes the space that the others leave; in narrow
// windows the panes lie above each other.
function splitPanes(grid) {
  const [first, middle, last] = grid.querySelectorAll(".kernel-pane");
  const narrow = matchMedia("(max-width: 1000px)");
  const isRow = () => narrow.matches;
  const most = (other) => () => (isRow() ? 2 * innerHeight : grid.clientWidth - other.offsetWidth - SPLIT_LEAST);
  const set = (name, pane) => (size) => {
    if (isRow()) pane.style.setProperty("--high", size);
    else grid.style.setProperty(name, size);
  };
  const [left, right] = grid.querySelectorAll(".splitter");
  new Splitter(left, { isRow, resized: () => [first, 1], most: most(last), set: set("--first", first) });
  new Splitter(right, { isRow, resized: () => (isRow() ? [middle, 1] : [last, -1]), most: most(first), set: set("--last", middle) });
}
