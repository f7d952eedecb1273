// Spans on rows over time. The cost of drawing depends on pixels, not on spans: a binary search finds those in view, and
// spans narrower than a pixel merge into blocks, in the colour with most time. All spans of a colour are one path, so the
// span under the pointer is found by time and row, not by element.
const SPAN_ROW = { least: 22, line: 15, gap: 4, top: 24, left: 132, right: 26, header: 24 };
const LEAST_VIEW = 50; // nanoseconds over the whole width

// Index of the first of rising values that is larger than `value`.
function firstOver(values, value) {
  let [low, high] = [0, values.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] > value) high = middle;
    else low = middle + 1;
  }
  return low;
}

const rectangle = (x, y, width, height) => "M" + x.toFixed(1) + "," + y + "h" + width.toFixed(1) + "v" + height + "h" + (-width).toFixed(1) + "z";

class Spans {
  // Functions of a span, given its row and its index there: `styleOf`: CSS class; `labelOf`: lines of short text;
  // `describe`: long text; `open`: opens it. `onRange` is called with the times in view, shortly after they change; `onSum`
  // with the selected times, or those in view, and whether they are selected.
  constructor(box, said, { styleOf, labelOf, describe, open, onRange, onSum }) {
    Object.assign(this, { box, said, styleOf, labelOf, describe, open, onRange, onSum });
    this.rows = [];
    this.range = [0, 1];
    this.svg = charts.select(box).append("svg").attr("class", "spans").attr("tabindex", 0).attr("role", "application")
      .attr("aria-label", "Timeline: w and s zoom, a and d move, arrows select a span, Shift with an arrow selects a range, Enter opens a span, 0 shows all");
    this.lines = this.svg.append("path").attr("class", "span-lines");
    this.names = this.svg.append("g").attr("class", "span-names");
    this.axis = this.svg.append("g").attr("class", "axis");
    this.plot = this.svg.append("g");
    this.paths = this.plot.append("g");
    this.labels = this.plot.append("g").attr("class", "span-labels");
    this.marks = this.plot.append("g");
    this.selection = this.plot.append("rect").attr("class", "span-selection");
    this.svg.on("pointerdown", (event) => this.beginSelection(event));
    this.zoom = charts.zoom().filter((event) => !event.button && !event.shiftKey && !this.movesSideways(event)).on("zoom", (event) => this.zoomed(event));
    this.svg.call(this.zoom).on("dblclick.zoom", null);
    this.svg.on("wheel.sideways", (event) => this.wheelSideways(event), { passive: false });
    this.svg.on("mousemove", (event) => this.hover(event)).on("mouseleave", () => this.point(null));
    this.svg.on("click", (event) => this.click(event)).on("keydown", (event) => this.key(event));
    box.addEventListener("scroll", () => this.schedule(), { passive: true });
    new ResizeObserver(() => this.resized()).observe(box);
  }

  // `rows`: a `name` with rising `starts` and `ends` (ns) of spans that do not overlap, and their `items`; or only a
  // `title`. `length`: end of the time axis in ns.
  set(rows, length, range) {
    this.rows = rows.map((row) => ({ ...row }));
    this.length = Math.max(1, length);
    this.focused = null;
    this.pointed = null;
    this.selected = null;
    this.range = this.within(range ?? [0, this.length]);
    this.resized();
  }

  // Rows of kernels share the height that the others leave; if they do not fit, the box scrolls.
  place() {
    const tall = this.rows.filter((row) => row.isTall);
    const isTall = (row) => (tall.length ? row.isTall : Boolean(row.starts));
    const least = (row) => (row.starts ? SPAN_ROW.least : SPAN_ROW.header);
    const others = this.rows.filter((row) => !isTall(row)).reduce((sum, row) => sum + least(row), 0);
    const room = (this.box.clientHeight - SPAN_ROW.top - others - 8) / Math.max(1, this.rows.filter(isTall).length);
    let y = SPAN_ROW.top;
    for (const row of this.rows) {
      row.y = y;
      row.height = isTall(row) ? Math.floor(Math.max(SPAN_ROW.least, room)) : least(row);
      y += row.height;
    }
    this.height = y + 6;
  }

  get width() {
    return this.box.clientWidth;
  }

  within([from, to]) {
    const span = Math.min(this.length, Math.max(LEAST_VIEW, to - from));
    const begin = Math.min(this.length - span, Math.max(0, from));
    return [begin, begin + span];
  }

  resized() {
    if (!this.width || !this.rows.length) return;
    this.place();
    const right = Math.max(SPAN_ROW.left + 50, this.width - SPAN_ROW.right);
    this.base = charts.scaleLinear([0, this.length], [SPAN_ROW.left, right]);
    const corners = [[SPAN_ROW.left, 0], [right, this.height]];
    this.zoom.extent(corners).translateExtent(corners).scaleExtent([1, Math.max(1, this.length / LEAST_VIEW)]);
    this.svg.attr("width", this.width).attr("height", this.height);
    this.show(this.range);
  }

  // Shows a range of times. d3 keeps it as a transform, so that wheel and drag continue from it.
  show(range) {
    const [from, to] = this.within(range);
    if (!this.base) return;
    const scale = this.length / (to - from);
    const shift = SPAN_ROW.left - scale * this.base(from);
    this.asked = [from, to];
    this.svg.call(this.zoom.transform, charts.zoomIdentity.translate(shift, 0).scale(scale));
    this.asked = null;
  }

  zoomed(event) {
    this.range = this.asked ?? this.within(event.transform.rescaleX(this.base).domain());
    this.schedule();
    this.sum();
    clearTimeout(this.telling);
    this.telling = setTimeout(() => this.onRange(this.isWhole() ? null : this.range), 150);
  }

  isWhole() {
    return this.range[1] - this.range[0] >= this.length * (1 - 1e-9);
  }

  schedule() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = null;
      this.draw();
    });
  }

  draw() {
    if (!this.width || !this.base) return;
    const scale = charts.scaleLinear(this.range, this.base.range());
    this.scale = scale;
    const visible = this.rows.filter(({ y, height }) => y + height > this.box.scrollTop && y < this.box.scrollTop + this.box.clientHeight);
    const paths = new Map();
    const labels = [];
    for (const row of visible) if (row.starts) this.drawRow(row, paths, labels);
    this.paths.selectAll("path").data([...paths], ([style]) => style).join("path").attr("class", ([style]) => "span " + style).attr("d", ([, parts]) => parts.join(""));
    this.labels.selectAll("text").data(labels).join("text").attr("x", ({ x }) => x.toFixed(1)).attr("y", ({ y }) => y).text(({ text }) => text);
    this.names.selectAll("text").data(visible).join("text").attr("class", ({ title }) => (title ? "title" : "")).attr("y", ({ y, height }) => y + height / 2 + 2)
      .attr("x", 4).text(({ title, name }) => this.shortened(title ?? name, title ? 999 : SPAN_ROW.left - 8)).append("title").text(({ title, name }) => title ?? name);
    this.lines.attr("d", visible.map(({ y, height }) => "M0," + (y + height - 1.5) + "H" + this.width).join(""));
    this.axis.attr("transform", "translate(0," + (SPAN_ROW.top - 4) + ")").call(charts.axisTop(scale).ticks(Math.max(2, this.width / 130)).tickFormat((value) => this.timeText(value)));
    this.drawMarks();
  }

  // A time with enough digits to distinguish ticks.
  timeText(value) {
    const [size, unit] = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]].find(([factor]) => factor <= this.range[1]) ?? [1, "ns"];
    return String(Number((value / size).toPrecision(12))) + " " + unit;
  }

  // `file`: the beginning of the text to leave out first, as in `net.py:12`.
  shortened(text, room, file = "") {
    const letters = Math.floor(room / 6.7);
    if (file && text.length > letters && !text.includes(" ")) return this.shortened(text.slice(file.length), room);
    return text.length <= letters ? text : text.slice(0, Math.max(1, letters - 1)) + "…";
  }

  drawRow(row, paths, labels) {
    const { starts, ends, y } = row;
    const [from, to] = this.range;
    const [left, right] = this.base.range();
    const pixel = (to - from) / (right - left);
    const put = (style, x, width) => {
      if (!paths.has(style)) paths.set(style, []);
      paths.get(style).push(rectangle(x, y, width, row.height - SPAN_ROW.gap));
    };
    for (let at = firstOver(ends, from); at < starts.length && starts[at] <= to;) {
      const x = Math.max(left, this.scale(starts[at]));
      if (ends[at] - starts[at] >= pixel) {
        const width = Math.min(right, this.scale(ends[at])) - x;
        put(this.styleOf(row, at), x, width > 3 ? width - 0.6 : width);
        if (width > 34) this.label(row, this.labelOf(row, at), Math.max(left, x) + 4, width - 8, labels);
        at++;
        continue;
      }
      const next = this.blockEnd(row, at, starts[at] + 2 * pixel, pixel);
      put(this.mainStyle(row, at, next), Math.min(x, right - 1), Math.max(1, Math.min(right, this.scale(ends[next - 1])) - x));
      at = next;
    }
  }

  // The lines of a label that fit below each other, in the middle of the row; in low rows, next to each other.
  label(row, lines, x, width, labels) {
    const fitting = Math.max(1, Math.min(lines.length, Math.floor((row.height - SPAN_ROW.gap) / SPAN_ROW.line)));
    const texts = fitting > 1 ? lines.slice(0, fitting) : [lines.join(" ")];
    const first = row.y + (row.height - SPAN_ROW.gap) / 2 + 4 - ((texts.length - 1) * SPAN_ROW.line) / 2;
    texts.forEach((text, number) => labels.push({ x, y: first + number * SPAN_ROW.line, text: this.shortened(text, width, text.slice(0, Math.max(0, text.lastIndexOf(":")))) }));
  }

  blockEnd({ starts, ends }, at, limit, pixel) {
    let next = at + 1;
    while (next < starts.length && starts[next] < limit && ends[next] - starts[next] < pixel) next++;
    return next;
  }

  mainStyle(row, begin, end) {
    if (end === begin + 1) return this.styleOf(row, begin);
    const times = new Map();
    for (let at = begin; at < end; at++) {
      const style = this.styleOf(row, at);
      times.set(style, (times.get(style) ?? 0) + row.ends[at] - row.starts[at]);
    }
    let main = null;
    for (const [style, time] of times) if (main === null || time > times.get(main)) main = style;
    return main;
  }

  drawMarks() {
    const [left, right] = this.base.range();
    const ends = ({ row, at }) => [row.starts[at], row.ends[at]].map((time) => Math.min(right, Math.max(left, this.scale(time))));
    const isInView = ({ row, at }) => row.ends[at] >= this.range[0] && row.starts[at] <= this.range[1];
    const marked = [["pointed", this.pointed], ["focused", this.focused]].filter(([, place]) => place && isInView(place));
    this.marks.selectAll("rect").data(marked, ([style]) => style).join("rect").attr("class", ([style]) => "mark " + style)
      .attr("x", ([, place]) => ends(place)[0] - 1).attr("y", ([, { row }]) => row.y - 1).attr("height", ([, { row }]) => row.height - SPAN_ROW.gap + 2)
      .attr("width", ([, place]) => Math.max(2, ends(place)[1] - ends(place)[0]) + 1);
    this.selection.attr("visibility", this.selected ? "visible" : "hidden");
    if (this.selected) {
      const [x, end] = this.selected.map((time) => Math.min(right, Math.max(left, this.scale(time))));
      this.selection.attr("x", x).attr("y", SPAN_ROW.top - 2).attr("width", Math.max(1, end - x)).attr("height", Math.max(0, this.height - SPAN_ROW.top));
    }
    const named = this.pointed ?? this.focused;
    this.said.textContent = named ? this.describe(named.row, named.at) : "";
  }

  // The span under the pointer, or the nearest within three pixels.
  spanAt(event) {
    const bounds = this.svg.node().getBoundingClientRect();
    const [x, y] = [event.clientX - bounds.left, event.clientY - bounds.top];
    const row = this.rows.find((candidate) => candidate.starts && y >= candidate.y && y < candidate.y + candidate.height);
    if (!row || !this.scale || x < SPAN_ROW.left) return null;
    const time = this.scale.invert(x);
    const distance = (at) => Math.max(row.starts[at] - time, time - row.ends[at], 0);
    const after = firstOver(row.starts, time);
    const near = [after - 1, after].filter((at) => at >= 0 && at < row.starts.length).sort((a, b) => distance(a) - distance(b))[0];
    return near !== undefined && distance(near) <= 3 * Math.abs(this.scale.invert(1) - this.scale.invert(0)) ? { row, at: near } : null;
  }

  // Selects the times from where the pointer goes down, with Shift, to where it goes up.
  beginSelection(event) {
    if (event.button || !event.shiftKey || !this.scale) return;
    event.preventDefault();
    const svg = this.svg.node();
    const timeOf = (moved) => Math.min(this.length, Math.max(0, this.scale.invert(moved.clientX - svg.getBoundingClientRect().left)));
    const from = timeOf(event);
    const move = (moved) => this.select([from, timeOf(moved)].sort((a, b) => a - b));
    svg.setPointerCapture(event.pointerId);
    svg.addEventListener("pointermove", move);
    svg.addEventListener("pointerup", () => {
      svg.removeEventListener("pointermove", move);
      this.ended = true; // the click that follows opens nothing
    }, { once: true });
  }

  // Selects a range of times, whose spans are summed; null: none.
  select(range) {
    this.selected = range && range[1] > range[0] ? range : null;
    if (this.scale) this.drawMarks();
    this.sum();
  }

  sum() {
    this.summing ??= requestAnimationFrame(() => {
      this.summing = null;
      this.onSum(this.selected ?? this.range, Boolean(this.selected));
    });
  }

  hover(event) {
    this.point(this.spanAt(event));
  }

  point(place) {
    this.pointed = place;
    this.svg.classed("on-span", Boolean(place));
    if (this.scale) this.drawMarks();
  }

  click(event) {
    const place = this.spanAt(event);
    const isEnd = this.ended;
    this.ended = false;
    if (!place || event.defaultPrevented || isEnd || event.shiftKey) return;
    this.focused = place;
    this.open(place.row, place.at);
  }

  movesSideways(event) {
    return event.type === "wheel" && (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY));
  }

  wheelSideways(event) {
    if (!this.movesSideways(event)) return;
    event.preventDefault();
    const [left, right] = this.base.range();
    this.move((event.deltaX || event.deltaY) / (right - left));
  }

  // Moves by a fraction of the times in view.
  move(part) {
    const by = part * (this.range[1] - this.range[0]);
    this.show(this.range.map((time) => time + by));
  }

  // Zooms around the selected span if it is in view, else around the middle.
  enlarge(factor) {
    const [from, to] = this.range;
    const chosen = this.focused ? (this.focused.row.starts[this.focused.at] + this.focused.row.ends[this.focused.at]) / 2 : NaN;
    const middle = chosen >= from && chosen <= to ? chosen : (from + to) / 2;
    this.show([middle - (middle - from) / factor, middle + (to - middle) / factor]);
  }

  // Selects a span and brings it into view.
  choose(row, at) {
    this.focused = { row, at };
    this.pointed = null;
    const [from, to] = this.range;
    const [start, end] = [row.starts[at], row.ends[at]];
    const room = to - from;
    const fits = end - start <= room; // else only its beginning comes into view
    if (end < from || start > to || (fits && (start < from || end > to))) {
      const isNear = end > from - room && start < to + room;
      const begin = !fits ? start - 0.1 * room : !isNear ? (start + end - room) / 2 : start < from ? start : end - room;
      this.show([begin, begin + room]);
    }
    const { scrollTop, clientHeight } = this.box;
    if (row.y < scrollTop + SPAN_ROW.top || row.y + row.height > scrollTop + clientHeight) this.box.scrollTop = row.y - clientHeight / 2;
    this.schedule();
  }

  // `extends_`: the selected times grow to the neighbour.
  chooseNeighbour(by, extends_ = false) {
    const { row, at } = this.focused ?? this.firstInView();
    const next = this.focused ? at + by : at;
    if (!row || next < 0 || next >= row.starts.length) return;
    const ends = [row.starts[at], row.ends[at], row.starts[next], row.ends[next]];
    if (extends_) this.select([Math.min(...ends, this.selected?.[0] ?? Infinity), Math.max(...ends, this.selected?.[1] ?? 0)]);
    this.choose(row, next);
  }

  chooseRow(by) {
    const { row, at } = this.focused ?? this.firstInView();
    const rows = this.rows.filter(({ starts }) => starts?.length);
    const other = this.focused ? rows[rows.indexOf(row) + by] : row;
    if (!other) return;
    this.choose(other, other === row ? at : Math.max(0, firstOver(other.starts, Math.max(row.starts[at], this.range[0])) - 1));
  }

  firstInView() {
    const row = this.rows.find(({ starts }) => starts?.length);
    return { row, at: row ? Math.min(firstOver(row.ends, this.range[0]), row.starts.length - 1) : 0 };
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const [more, less] = [() => this.enlarge(1.5), () => this.enlarge(1 / 1.5)];
    const acts = {
      w: more, "+": more, "=": more, s: less, "-": less, a: () => this.move(-0.2), d: () => this.move(0.2),
      ArrowLeft: () => this.chooseNeighbour(-1, event.shiftKey), ArrowRight: () => this.chooseNeighbour(1, event.shiftKey), ArrowUp: () => this.chooseRow(-1), ArrowDown: () => this.chooseRow(1),
      Enter: () => this.focused && this.open(this.focused.row, this.focused.at), 0: () => this.show([0, this.length]),
    };
    if (this.selected) acts.Escape = () => this.select(null);
    else if (!this.isWhole()) acts.Escape = acts[0];
    if (!Object.hasOwn(acts, event.key)) return;
    event.preventDefault();
    event.stopPropagation();
    acts[event.key]();
  }
}
