// The overview: where the time goes, the most expensive ops, and the ops with most headroom.
const nodesOf = new Map(data.trees.map((tree) => [tree.name, allUnpacked("TreeNode", tree.nodes)]));
const roofPoints = data.roofline ? allUnpacked("RoofPoint", data.roofline.points) : [];
const roofOfOp = new Map(roofPoints.filter((point) => point.kind === "op").map((point) => [point.id, point]));
const roofShare = (point) => point.roofline_ns / point.time_ns;
const FAMILIES = ["contraction", "reduction", "movement", "elementwise", "other"];

const legendKey = ([style, words]) => make("span", "key", make("i", style), words);

function legend(box, entries) {
  byId(box).replaceChildren(...entries.map(legendKey));
}

// The bar of elapsed time, with parts as wide as their shares, and its legend.
function drawElapsed() {
  const box = byId("elapsed");
  if (!box) return;
  const whole = data.elapsed.reduce((sum, part) => sum + part.ns, 0);
  const entries = data.elapsed.map((part) => ["part-" + part.kind, part.name + " " + share(part.ns, whole)]);
  const bars = entries.map(([style, words], at) => {
    const piece = make("i", style);
    piece.style.flexGrow = String(data.elapsed[at].ns);
    piece.title = words + (data.elapsed[at].kind === "outliers" ? ": kernel time above the outlier threshold (preemption, noise)" : "");
    return piece;
  });
  box.replaceChildren(make("div", "stack", ...bars), make("div", "legend", ...entries.map(legendKey)));
}

// The icicle

const drawn = { tree: data.trees[0]?.name ?? "", colour: "kind" };
let icicle = null;

function paintCell(cell) {
  const { node } = cell.data;
  if (node.kind === "no-op" && node.label === "outliers") return "part-outliers";
  if (node.kind === "no-op" || cell.parent?.data.node.kind === "no-op") return "no-op";
  if (node.kind !== "op") return node.kind === "rest" ? "rest" : "inner";
  if (drawn.colour === "kind") return "kind-" + node.family;
  const point = roofOfOp.get(node.leads_to);
  return point ? rooflineClass(roofShare(point)) : "at-unknown";
}

function drawIcicle(zoomed) {
  if (!data.trees.length) return;
  icicle ??= new Icicle(byId("icicle"), {
    amountOf: (node) => node.amounts[metric],
    describe: (value, whole) => amount(value, chosenMetric()) + ", " + share(value, whole),
    paint: paintCell,
    open: (node) => (ops.has(node.leads_to) || lineOf(node.leads_to) ? go(node.leads_to) : null),
    onZoom: (number) => keep("zoom", number ? drawn.tree + "-" + number : "", true),
  });
  icicle.set(nodesOf.get(drawn.tree), zoomed);
  pressChoice("tree", drawn.tree);
  pressChoice("colour", drawn.colour);
  const ofOps = drawn.colour === "kind" ? FAMILIES.map((name) => ["kind-" + name, name]) : ROOFLINE;
  legend("icicle-legend", [...ofOps, ["no-op", "no op"], ["part-outliers", "outliers"]]);
}

function chooseTree(name) {
  if (!nodesOf.has(name)) return drawn.tree;
  drawn.tree = name;
  keep("zoom", "");
  drawIcicle(0);
  return name;
}

function chooseColour(name) {
  if (name !== "kind" && name !== "attainable") return drawn.colour;
  drawn.colour = name;
  drawIcicle(icicle?.zoomed?.data.number ?? 0);
  return name;
}

function zoomTo(text) {
  const [name, number] = text.split("-");
  const known = nodesOf.has(name) && Object.hasOwn(nodesOf.get(name), number);
  if (known) drawn.tree = name;
  drawIcicle(known ? Number(number) : 0);
  return known ? text : "";
}

// Tables with bars

const wideBar = (...parts) => make("td", "wide", make("div", "stack", ...parts.map(([style, part]) => {
  const piece = make("i", style);
  piece.style.width = (100 * part).toFixed(2) + "%";
  return piece;
})));

function drawTopOps() {
  const target = byId("top-ops");
  if (!target) return;
  const cost = (op) => costOf(op)?.attributed;
  const top = data.ops.filter((op) => cost(op) > 0).sort((a, b) => cost(b) - cost(a)).slice(0, 12);
  const rows = top.map((op) => make(
    "tr", "",
    make("td", "mono name", link(op.id + " " + shortName(op), op.id)), amountCell(cost(op)), shareCell(cost(op)), wideBar(["own", cost(op) / cost(top[0])]),
    make("td", "", link(...sourceOf(op))), make("td", "scope", ...op.scope.split("/").flatMap((part, at) => (at ? ["/", make("wbr"), part] : [part]))),
  ));
  const head = headRow(["op"], ["attributed", "num"], ["share", "num", "share of the measured cost without outliers"], ["bar"], ["line"], ["scope"]);
  target.replaceChildren(make("table", "plain bars", head, make("tbody", "", ...rows)));
}

// Headings with their definitions as tooltips.
const headRow = (...entries) => make("thead", "", make("tr", "", ...entries.map(([label, style, title]) => {
  const cell = make("th", style ?? "", label);
  cell.scope = "col";
  cell.title = title ?? DEFINITIONS[label] ?? "";
  return cell;
})));

const savedOf = (point) => Math.max(0, point.time_ns - point.roofline_ns);
const anchorOfPoint = (point) => (point.kind === "op" ? point.id : kernelNumber.has(point.id) ? "kernel" + kernelNumber.get(point.id) : "kernels");
const pointWords = (point) => point.id + " " + (point.kind === "op" ? point.label : "") + ": " + amount(point.time_ns, data.metrics[data.roofline.metric]) + ", " + share(point.roofline_ns, point.time_ns) + " of roofline";
let roofKind = "op";

// Why no row has headroom.
function noHeadroom(points) {
  if (points.length) return "No headroom: every " + roofKind + " with a known amount of work runs at the roofline.";
  return "Headroom is unknown: no " + roofKind + " has a known amount of work, usually because shapes are dynamic. Build the model with static shapes to see it.";
}

const FAR_ABOVE = 2; // times the roofline; small errors of the peaks stay below
// A note on points that no machine can reach.
function aboveRoof(points) {
  const above = points.filter((point) => roofShare(point) > FAR_ABOVE).sort((a, b) => b.time_ns - a.time_ns);
  if (!above.length) return [];
  const named = above.slice(0, 4).flatMap((point, at) => [at ? ", " : "", link(point.kind === "op" ? point.id + " " + point.label : point.label, anchorOfPoint(point))]);
  const many = above.length > 4 ? " and " + (above.length - 4) + " more" : "";
  return [make("p", "facts", plural(above.length, roofKind) + (above.length === 1 ? " is" : " are") + " above " + FAR_ABOVE + "x the roofline (", ...named, many + "): " + (data.roofline.units.length ? "it computes in another type or on tensor cores, " : "") + "data stays in a cache, or the work or the cost is wrong or estimated.")];
}

function drawWorth() {
  const target = byId("worth");
  if (!target) return;
  const of = data.metrics[data.roofline.metric];
  const points = roofPoints.filter((point) => point.kind === roofKind);
  const top = [...points].sort((a, b) => savedOf(b) - savedOf(a)).slice(0, 8).filter((point) => savedOf(point) > 0);
  const most = Math.max(...top.map((point) => point.time_ns), 1);
  const rows = top.map((point) => make(
    "tr", "",
    make("td", "mono name", link(point.kind === "op" ? point.id + " " + point.label : point.label, anchorOfPoint(point))),
    make("td", "num", amount(savedOf(point), of)), make("td", "num", share(point.roofline_ns, point.time_ns)),
    wideBar(["attained", point.roofline_ns / most], ["apart", savedOf(point) / most]),
  ));
  const head = headRow([roofKind], ["headroom", "num", "time above the roofline: what is left to gain"], ["% of roofline", "num", "the time that peak arithmetic and bandwidth allow, over the measured time"], ["bar", "", "blue: at the roofline; red: headroom"]);
  target.replaceChildren(rows.length ? make("table", "plain bars", head, make("tbody", "", ...rows)) : make("p", "facts", noHeadroom(points)), ...aboveRoof(points));
  pressChoice("roof", roofKind);
  legend("roofline-legend", points.length ? ROOFLINE.slice(0, -1) : []);
  drawRoofline(byId("roofline"), data.roofline, points, pointWords, anchorOfPoint);
}

function chooseRoof(kind) {
  if (kind !== "op" && kind !== "kernel") return roofKind;
  roofKind = kind;
  drawWorth();
  return kind;
}

function drawOverview() {
  drawElapsed();
  drawIcicle(icicle?.zoomed?.data.number ?? 0);
  drawTopOps();
  drawWorth();
}

function listenToOverview() {
  choice("tree", drawn.tree, chooseTree);
  choice("colour", drawn.colour, chooseColour);
  choice("roof", roofKind, chooseRoof);
  setting("zoom", "", zoomTo);
  if (byId("roofline")) new ResizeObserver(drawWorth).observe(byId("roofline"));
}
listenToOverview();
