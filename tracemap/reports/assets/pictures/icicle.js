// An icicle plot: costs from the total at the top down to single ops. The width of a cell is its cost.
const CELL = 21; // pixels high
const LETTER = 6.7; // pixels wide, on average

class Icicle {
  // `amountOf(node)`: own amount; `describe(amount)`: its text; `paint(cell)`: its class; `open(node)`: opens a leaf;
  // `onZoom(number)`: called with the node that fills the width.
  constructor(box, { amountOf, describe, paint, open, onZoom }) {
    Object.assign(this, { amountOf, describe, paint, open, onZoom });
    this.path = make("nav", "path");
    this.path.setAttribute("aria-label", "Path to the zoomed cell");
    this.said = make("p", "said");
    box.replaceChildren(this.path);
    this.box = box;
    this.svg = charts.select(box).append("svg").attr("class", "icicle").attr("role", "group").attr("aria-label", "Icicle of costs: arrows move, Enter zooms in, Backspace zooms out");
    box.append(this.said);
    this.svg.node().addEventListener("keydown", (event) => this.key(event));
    this.svg.on("mouseleave", () => this.say(this.zoomed));
    new ResizeObserver(() => this.draw()).observe(box);
  }

  set(nodes, zoomed) {
    const entries = nodes.map((node, number) => ({ number, node, children: [] }));
    for (const entry of entries) if (entry.node.parent >= 0) entries[entry.node.parent].children.push(entry);
    this.root = charts.hierarchy(entries[0], (entry) => entry.children);
    this.root.sum((entry) => this.amountOf(entry.node));
    charts.partition()(this.root);
    this.byNumber = new Map(this.root.descendants().map((cell) => [cell.data.number, cell]));
    this.zoomed = this.byNumber.get(zoomed) ?? this.root;
    this.focused = this.zoomed;
    this.draw();
  }

  zoom(to) {
    this.zoomed = to;
    this.focused = to;
    this.draw();
    this.onZoom(to.data.number);
  }

  activate(cell) {
    if (cell.children && cell !== this.zoomed) this.zoom(cell);
    else if (!cell.children) this.open(cell.data.node);
  }

  // Ancestors of the zoomed cell, and its descendants of at least a pixel.
  cells(width) {
    const scale = charts.scaleLinear([this.zoomed.x0, this.zoomed.x1], [0, width]);
    const shown = this.zoomed.ancestors().reverse().map((cell) => ({ cell, x: 0, width }));
    const enter = (cell) => {
      for (const child of cell.children ?? []) {
        const [x, end] = [scale(child.x0), scale(child.x1)];
        if (end - x < 1) continue;
        shown.push({ cell: child, x, width: end - x });
        enter(child);
      }
    };
    enter(this.zoomed);
    return shown;
  }

  draw() {
    const width = this.box.clientWidth;
    if (!this.root || !width) return;
    const shown = this.cells(width);
    const depth = Math.max(...shown.map(({ cell }) => cell.depth)) + 1;
    this.svg.attr("width", width).attr("height", depth * CELL).attr("viewBox", "0 0 " + width + " " + depth * CELL);
    const cells = this.svg.selectAll("g.cell").data(shown, ({ cell }) => cell.data.number).join((entered) => {
      const group = entered.append("g").attr("role", "button").attr("tabindex", -1);
      group.append("rect").attr("height", CELL - 1).attr("rx", 2);
      group.append("text").attr("y", 14).attr("x", 5).attr("aria-hidden", "true");
      group.on("click", (event, { cell }) => this.activate(cell));
      group.on("mouseenter focus", (event, { cell }) => this.say(cell));
      return group;
    }).order();
    cells.attr("class", ({ cell }) => "cell " + this.paint(cell) + (cell.depth < this.zoomed.depth ? " above" : ""))
      .attr("transform", ({ cell, x }) => "translate(" + x.toFixed(2) + "," + cell.depth * CELL + ")")
      .attr("aria-label", ({ cell }) => this.words(cell))
      .attr("tabindex", ({ cell }) => (cell === this.focused ? 0 : -1));
    cells.select("rect").attr("width", ({ width: wide }) => Math.max(0.5, wide - 1).toFixed(2));
    cells.select("text").text(({ cell, width: wide }) => this.label(cell, wide));
    this.say(this.zoomed);
    this.drawPath();
  }

  label(cell, wide) {
    const letters = Math.floor((wide - 10) / LETTER);
    const text = cell.data.node.label;
    if (letters < 3) return "";
    return text.length <= letters ? text : text.slice(0, letters - 1) + "…";
  }

  words(cell) {
    return cell.data.node.label + ": " + this.describe(cell.value, this.root.value);
  }

  say(cell) {
    this.said.textContent = this.words(cell);
  }

  drawPath() {
    const parts = this.zoomed.ancestors().reverse().map((cell) => {
      const button = makeButton(cell.data.node.label, () => this.zoom(cell));
      if (cell === this.zoomed) button.setAttribute("aria-current", "true");
      return button;
    });
    this.path.hidden = parts.length < 2;
    this.path.replaceChildren(...parts.flatMap((part, at) => (at ? [" › ", part] : [part])));
  }

  neighbour(cell, by) {
    const row = this.svg.selectAll("g.cell").data().map((drawn) => drawn.cell).filter(({ depth }) => depth === cell.depth);
    return row.sort((a, b) => a.x0 - b.x0)[row.indexOf(cell) + by];
  }

  key(event) {
    const cell = this.focused;
    const moves = {
      ArrowDown: () => cell.children?.find((child) => this.isDrawn(child)),
      ArrowUp: () => cell.parent,
      ArrowLeft: () => this.neighbour(cell, -1),
      ArrowRight: () => this.neighbour(cell, 1),
    };
    const acts = { Enter: () => this.activate(cell), " ": () => this.activate(cell), Backspace: () => this.zoomed.parent && this.zoom(this.zoomed.parent) };
    if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in moves || event.key in acts)) return;
    event.preventDefault();
    event.stopPropagation();
    acts[event.key]?.();
    this.focus(moves[event.key]?.() ?? this.focused);
  }

  isDrawn(cell) {
    return this.svg.selectAll("g.cell").data().some((drawn) => drawn.cell === cell);
  }

  focus(cell) {
    this.focused = cell;
    this.svg.selectAll("g.cell").attr("tabindex", (drawn) => (drawn.cell === cell ? 0 : -1)).filter((drawn) => drawn.cell === cell).node()?.focus();
  }
}
