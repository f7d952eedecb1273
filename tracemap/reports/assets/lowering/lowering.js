// The page of a lowering: links from an op to its loops in every stage, and from a loop to its ops.
const ops = new Map(data.ops.map((op) => [op.id, op]));
for (const pane of document.querySelectorAll(".pane")) new Blocks(pane, tokensOfMlir);
let chosen = -1; // index of the selected op, where keys continue

// Indices of every stage: line -> ops with an operation on it, op -> its lines, first line -> outermost loop.
for (const stage of data.stages) {
  stage.opsOfLine = new Map();
  stage.linesOfOp = new Map();
  stage.heads = new Map(stage.loops.filter((loop) => loop.line !== null).map((loop) => [loop.line, loop]));
  for (const { links } of [...stage.loops, ...stage.rest]) {
    for (const { op, lines } of links) {
      const known = stage.linesOfOp.get(op) ?? [];
      known.push(...lines);
      stage.linesOfOp.set(op, known);
      for (const line of lines) stage.opsOfLine.set(line, (stage.opsOfLine.get(line) ?? new Set()).add(op));
    }
  }
}

const enclosing = (stage, line) => stage.loops.find((loop) => loop.line !== null && loop.line <= line && line <= loop.last_line);

// Selection

const TINTS = ["t0", "t1", "t2", "t3", "t4", "t5"];
const tint = (order) => TINTS[order % TINTS.length];

function clear() {
  for (const row of document.querySelectorAll(".selected, .inside")) row.classList.remove("selected", "inside", ...TINTS);
  hideDetails();
}

function mark(selected, except) {
  data.stages.forEach((stage, number) => {
    const lines = new Map(); // line -> index of the first selected op on it
    selected.forEach((op, order) => {
      for (const line of stage.linesOfOp.get(op) ?? []) if (!lines.has(line)) lines.set(line, order);
    });
    for (const loop of stage.loops) {
      if (loop.line === null || !loop.links.some(({ op }) => selected.includes(op))) continue;
      for (let line = loop.line; line <= loop.last_line; line++) byId(`S${number}L${line}`)?.classList.add("inside");
    }
    for (const [line, order] of lines) byId(`S${number}L${line}`)?.classList.add("selected", tint(order));
    const first = Math.min(...lines.keys());
    if (number !== except && Number.isFinite(first)) reveal(number, first);
  });
  selected.forEach((op, order) => byId(op)?.classList.add("selected", tint(order)));
  if (except !== "ops") byId(selected[0])?.scrollIntoView({ block: "nearest" });
}

function reveal(number, line) {
  const pane = byId("S" + number);
  const row = byId(`S${number}L${line}`);
  const top = row.getBoundingClientRect().top - pane.getBoundingClientRect().top;
  if (top < 24 || top > pane.clientHeight - 40) pane.scrollTop += top - pane.clientHeight / 3;
}

function select(selected, loop, except) {
  clear();
  if (!selected.length && !loop) return;
  chosen = data.ops.findIndex((op) => op.id === selected[0]);
  mark(selected, except);
  inspect(selected, loop);
}

function inspect(selected, loop) {
  const title = loop ? `${loop.id} ${loop.name}` : selected.length === 1 ? selected[0] : `${selected.length} ops`;
  const cards = selected.map((id, order) => card(ops.get(id), tint(order)));
  showDetails(title, clear, ...(loop ? [loopFacts(loop)] : []), ...cards);
}

const depth = (loop) => 1 + Math.max(0, ...loop.children.map(depth));

function loopFacts(loop) {
  const words = [`Nesting depth: ${depth(loop)}. `, `${loop.operations} operations, `];
  words.push(loop.untraced ? `${loop.untraced} of them cannot be traced to an op.` : "all traced to ops.");
  return make("p", "facts", ...words, loop.links.length ? "" : " No op is in this loop.");
}

function card(op, colour) {
  const rows = data.stages.map((stage, number) => {
    const lines = stage.linesOfOp.get(op.id) ?? [];
    const words = op.places[number];
    const where = lines.length ? link(words, `S${number}L${Math.min(...lines)}`) : words;
    return make("tr", "", make("th", "", number ? `stage ${number}` : "model"), make("td", "", where), make("td", "evidence", evidence(stage, op.id)));
  });
  return make("div", "card " + colour, make("h3", "", make("span", "", `${op.id} ${op.name}`), make("small", "", op.position)), make("table", "", make("tbody", "", ...rows)));
}

function evidence(stage, op) {
  const kinds = new Set(stage.loops.flatMap((loop) => loop.links.filter((entry) => entry.op === op).map((entry) => entry.evidence)));
  return [...kinds].join(", ");
}

// Clicks, keys, anchors

function chooseLine(number, line) {
  const stage = data.stages[number];
  const loop = stage.heads.get(line);
  if (loop) return select(loop.links.map(({ op }) => op), loop, number);
  const there = stage.opsOfLine.get(line);
  if (there) return select([...there], null, number);
  const outer = enclosing(stage, line);
  return outer ? select(outer.links.map(({ op }) => op), outer, number) : select([], null, number);
}

function follow() {
  const anchor = named();
  const line = /^S(\d+)L(\d+)$/.exec(anchor);
  if (line && data.stages[line[1]]) {
    reveal(Number(line[1]), Number(line[2]));
    chooseLine(Number(line[1]), Number(line[2]));
  } else if (ops.has(anchor)) {
    select([anchor], null, "");
  }
}

document.addEventListener("click", (event) => {
  if (event.target.closest("a") || String(getSelection())) return;
  const line = event.target.closest("#panes .l:not(.head)");
  const row = event.target.closest("#ops tbody tr");
  if (line) {
    const [, stage, number] = /^S(\d+)L(\d+)$/.exec(line.id);
    rememberInAddress(line.id);
    chooseLine(Number(stage), Number(number));
  } else if (row) {
    rememberInAddress(row.id);
    select([row.id], null, "ops");
  }
});
addEventListener("hashchange", follow);

function step(by) {
  if (!data.ops.length) return;
  const op = data.ops[(Math.max(chosen + by, chosen < 0 ? 0 : -1) + data.ops.length) % data.ops.length].id;
  rememberInAddress(op);
  select([op], null, "");
}

listenToKeys({ j: () => step(1), k: () => step(-1), Escape: clear });
follow();
