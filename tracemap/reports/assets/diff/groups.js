// Fusion changes: boxes of dispatches with their ops, before on the left, after on the right, with a line per op.
const GROUP = { row: 16, head: 34, pad: 6, gap: 12, most: 16, boxes: 12, letter: 6.7 };
const FLOWS = ["kind-contraction", "kind-reduction", "kind-movement", "kind-elementwise", "kind-other"];
const shortKernel = (name) => name.replace(/^.*?_dispatch_/, "dispatch ");

// Vertical positions of boxes and their ops; ops after the first `most` of a box share a position.
function laidOut(boxes) {
  let top = 14;
  return boxes.slice(0, GROUP.boxes).map((box) => {
    const shown = box.ops.slice(0, GROUP.most);
    const more = box.ops.length - shown.length;
    const height = GROUP.head + (shown.length + (more ? 1 : 0)) * GROUP.row + GROUP.pad;
    const drawn = { ...box, top, height, shown, more, at: new Map() };
    box.ops.forEach((row, number) => drawn.at.set(row, top + GROUP.head + (Math.min(number, GROUP.most) + 0.5) * GROUP.row));
    top += height + GROUP.gap;
    return drawn;
  });
}

const shortened = (words, width) => {
  const letters = Math.max(3, Math.floor(width / GROUP.letter));
  return words.length <= letters ? words : words.slice(0, letters - 1) + "…";
};

function drawGroup(box, number) {
  const width = box.clientWidth;
  if (!width) return;
  const all = boxesOf(data.groups[number]);
  const [before, after] = all.map(laidOut);
  const lowest = Math.max(...[...before, ...after].map((drawn) => drawn.top + drawn.height), 40);
  const bottom = lowest + (all.some((boxes) => boxes.length > GROUP.boxes) ? GROUP.row : 0);
  const side = Math.floor(width * 0.38);
  const svg = charts.select(document.createElementNS("http://www.w3.org/2000/svg", "svg")).attr("class", "regrouping").attr("role", "group")
    .attr("aria-label", groupWords(...all)).attr("width", width).attr("height", bottom + 4).attr("viewBox", "0 0 " + width + " " + (bottom + 4));
  svg.append("g").selectAll("path").data(flowsOf(before, after, side, width)).join("path")
    .attr("class", ({ style }) => "flow " + style).attr("d", ({ d }) => d).append("title").text(({ words }) => words);
  drawBoxes(svg, before, 0, side, "before");
  drawBoxes(svg, after, width - side, side, "after");
  const left = all.map((boxes, at) => ({ more: boxes.length - GROUP.boxes, x: at ? width - side : 0 })).filter(({ more }) => more > 0);
  svg.append("g").selectAll("text").data(left).join("text").attr("class", "quiet").attr("x", ({ x }) => x + 12).attr("y", bottom).text(({ more }) => "and " + plural(more, "more kernel"));
  box.replaceChildren(svg.node());
}

const groupWords = (before, after) => {
  const words = (boxes) => (boxes.length > GROUP.boxes ? plural(boxes.length, "kernel") + ": " : "") + boxes.slice(0, GROUP.boxes).map(({ site, ops }) => site + " (" + plural(ops.length, "op") + ")").join(", ") || "no kernel";
  return "Before: " + words(before) + "; after: " + words(after);
};

// A line per op that is in a dispatch on both sides; a stub if it is on one side only.
function flowsOf(before, after, side, width) {
  const found = new Map();
  const end = width - side;
  const note = (row, words, style, d) => found.set(d, { words: data.ops[row].ids + " " + data.ops[row].name + words, style, d });
  before.forEach((box, number) => {
    for (const [row, y] of box.at) {
      const others = after.filter((other) => other.at.has(row));
      for (const other of others) {
        const to = other.at.get(row);
        note(row, "", FLOWS[number % FLOWS.length], "M" + side + "," + y + "C" + width / 2 + "," + y + " " + width / 2 + "," + to + " " + end + "," + to);
      }
      if (!others.length) note(row, ": " + (data.ops[row].after ? data.ops[row].outcome_after + " after" : "gone"), "stub", "M" + side + "," + y + "h" + Math.floor((end - side) * 0.2));
    }
  });
  for (const box of after) {
    for (const [row, y] of box.at) {
      if (!before.some((other) => other.at.has(row))) note(row, ": " + (data.ops[row].before ? data.ops[row].outcome_before + " before" : "new"), "stub", "M" + end + "," + y + "h" + -Math.floor((end - side) * 0.2));
    }
  }
  return [...found.values()];
}

function drawBoxes(svg, boxes, x, width, title) {
  svg.append("text").attr("class", "title").attr("x", x + 2).attr("y", 10).text(boxes.length ? title : title + ": no kernel");
  const all = svg.append("g").selectAll("g").data(boxes).join("g").attr("transform", (box) => "translate(" + x + "," + box.top + ")");
  all.append("rect").attr("class", "box").attr("width", width).attr("height", (box) => box.height).attr("rx", 4);
  all.append("rect").attr("width", 4).attr("height", (box) => box.height).attr("rx", 2).attr("class", (box, number) => "stripe " + (title === "before" ? FLOWS[number % FLOWS.length] : ""));
  all.append("text").attr("class", "quiet").attr("x", 12).attr("y", 14).text((box) => box.site);
  const names = all.append("a").attr("href", (box) => kernelAnchor(title === "before" ? "A" : "B", box.kernel));
  names.append("text").attr("class", "kernel").attr("x", 12).attr("y", 28).text((box) => shortened(shortKernel(box.kernel), width - 18)).append("title").text((box) => box.kernel);
  const ops = all.selectAll("a.op").data((box) => box.shown.map((row, at) => ({ op: data.ops[row], at }))).join("a").attr("class", "op").attr("href", ({ op }) => "#" + op.key);
  ops.append("text").attr("x", 12).attr("y", ({ at }) => GROUP.head + at * GROUP.row + 12).text(({ op }) => shortened(opWords(op, title), width - 18));
  all.filter((box) => box.more).append("text").attr("class", "quiet").attr("x", 12).attr("y", (box) => box.height - 8).text((box) => "and " + plural(box.more, "more op"));
}

const opWords = (op, title) => (title === "before" ? op.before : op.after) + " " + op.name + (op.how === "new" || op.how === "gone" ? " (" + op.how + ")" : "");
// A kernel with unchanged code is not in the tab of kernels; link to its ops in the table.
const kernelAnchor = (side, name) => (kernelNumber[side].has(name) ? "#kernel" + kernelNumber[side].get(name) : "#ops?ops.filter=" + encodeURIComponent(name));

// Groups of the same shape share a card, with a menu to select one. A card is drawn when it comes into view.
const MOST_CARDS = 60;
const MOST_CHOICES = 500;
const groupCards = new Map();

function groupCard(number) {
  const group = data.groups[number];
  const box = make("div", "");
  const choice = make("select");
  choice.setAttribute("aria-label", "Groups of this shape");
  choice.append(...group.alike.slice(0, MOST_CHOICES).map((alike) => new Option(groupName(alike), alike)));
  const cost = make("span", "");
  const card = { box, choice, cost, shown: number, seen: false };
  choice.addEventListener("change", () => showGroup(card, Number(choice.value)));
  const count = group.alike.length > 1 ? make("span", "facts", plural(group.alike.length, "group") + " of this shape") : "";
  card.element = make("article", "", make("div", "group-head", choice, count, cost), box);
  const near = new IntersectionObserver(([entry]) => {
    if (!entry.isIntersecting) return;
    card.seen = true;
    showGroup(card, card.shown);
  }, { root: byId("regrouped"), rootMargin: "50% 0px" });
  near.observe(card.element);
  new ResizeObserver(() => card.seen && drawGroup(box, card.shown)).observe(byId("regrouped"));
  return card;
}

function groupName(number) {
  const first = boxesOf(data.groups[number]).flat().flatMap((box) => box.ops)[0];
  const op = data.ops[first];
  return "group " + (number + 1) + ": " + (op ? op.ids + " " + op.name + (op.scope ? " in " + op.scope : "") : "");
}

function showGroup(card, number) {
  card.shown = number;
  card.choice.value = String(number);
  const group = data.groups[number];
  const sum = changeOf(group);
  card.cost.textContent = sum === null ? "" : costText(beforeOf(group)) + " → " + costText(afterOf(group)) + ", " + changeText(sum);
  card.cost.className = sum > 0 ? "more" : sum < 0 ? "less" : "";
  drawGroup(card.box, number);
}

function listGroups() {
  const firsts = data.groups.flatMap((group, number) => (group.alike[0] === number ? [number] : []));
  for (const number of firsts.slice(0, MOST_CARDS)) groupCards.set(number, groupCard(number));
  const more = firsts.length > MOST_CARDS ? [make("p", "facts", (firsts.length - MOST_CARDS) + " more shapes with smaller changes of cost")] : [];
  byId("groups").replaceChildren(...[...groupCards.values()].map((card) => card.element), ...more);
}
if (data.groups.length) listGroups();

function openGroup(number) {
  showPanel("regrouped");
  const card = groupCards.get(data.groups[number].alike[0]);
  if (!card) return;
  card.seen = true;
  card.element.scrollIntoView({ block: "start" });
  showGroup(card, number);
}
const repaintGroups = () => groupCards.forEach((card) => card.seen && showGroup(card, card.shown));
