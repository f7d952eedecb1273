// The timeline of single invocations: one, two above each other, or all invocations of a run on the page.
const timeline = data.timeline;
const spanItems = timeline ? allUnpacked("TimelineItem", timeline.items) : [];
const functionCalls = timeline ? allUnpacked("TimelineCall", timeline.calls) : [];
const callKey = (call) => call.run + "-" + (call.invocation ?? "");
const callsByKey = new Map(functionCalls.map((call, number) => [callKey(call), number]));
const severalRuns = timeline?.begins.length > 1;
const callName = (call) => (severalRuns ? "run " + call.run + ", " : "") + (isKnown(call.invocation) ? "invocation " + call.invocation : "all events");
const ALL = "-all"; // suffix of a run's number
let spansDrawn = null;

// Start and end times of a track's spans, from the gaps between them.
function withTimes(track) {
  const count = track.gaps.length;
  const [starts, ends] = [new Float64Array(count), new Float64Array(count)];
  let end = 0;
  for (let at = 0; at < count; at++) {
    starts[at] = end + track.gaps[at];
    end = ends[at] = starts[at] + track.durations[at];
  }
  return { ...track, starts, ends };
}
const spanTracks = timeline ? timeline.tracks.map(withTimes) : [];

function rowsOfRun(run) {
  return spanTracks.filter((track) => track.run === run).map(({ name, kind, starts, ends, items, calls }) => ({ name, isTall: kind === "dispatch", starts, ends, items, callAt: (at) => calls[at] }));
}

// The spans of an invocation, from its beginning.
function rowsOfCall(number) {
  const call = functionCalls[number];
  const rows = [];
  for (const track of spanTracks) {
    if (track.run !== call.run - 1) continue;
    const of = [];
    for (let at = 0; at < track.calls.length; at++) if (track.calls[at] === number) of.push(at);
    if (!of.length) continue;
    const from = (times) => Float64Array.from(of, (at) => times[at] - call.begin_ns);
    rows.push({ name: track.name, isTall: track.kind === "dispatch", starts: from(track.starts), ends: from(track.ends), items: of.map((at) => track.items[at]), callAt: () => number });
  }
  return rows;
}

const lengthOfCall = (number) => functionCalls[number].end_ns - functionCalls[number].begin_ns;
const runOf = (key) => Number(key.slice(0, -ALL.length)) - 1;

// The rows to draw, and the end of their time axis.
function rowsShown({ call, beside }) {
  if (call.endsWith(ALL)) {
    const rows = rowsOfRun(runOf(call));
    return { rows, length: Math.max(...rows.map(({ ends }) => ends.at(-1) ?? 0)) };
  }
  const number = callsByKey.get(call);
  if (!callsByKey.has(beside)) return { rows: rowsOfCall(number), length: lengthOfCall(number) };
  const both = [number, callsByKey.get(beside)];
  const titled = (call) => [{ title: callName(functionCalls[call]) + ", " + quantity(lengthOfCall(call), "ns") }, ...rowsOfCall(call)];
  return { rows: both.flatMap(titled), length: Math.max(...both.map(lengthOfCall)) };
}

const firstCall = timeline ? callKey(functionCalls[timeline.first]) : "";
const chosenSpans = { call: firstCall, beside: "", paint: timeline?.scopes.length ? "scope" : "kind" };

// Colours and texts

const QUIET = { execute: "span-queue", copy: "span-transfer", fill: "span-transfer", update: "span-transfer" };
function styleOfItem(item) {
  if (item.kind !== "dispatch") return QUIET[item.kind] ?? "span-memory";
  if (chosenSpans.paint === "kind") return item.family ? "kind-" + item.family : "no-op";
  return item.scope < 0 ? "no-op" : "scope-" + Math.min(item.scope, 7);
}

const styleOfSpan = (row, at) => spanStyles[row.items[at]];
let spanStyles = [];

const shortOpName = (op) => op.name.replace(/^[^.]*\./, "");
const lineOfOp = (op) => sourceOf(op)[0];

// The op that gives the kernel its name, its source line, and the time.
function labelOfSpan(row, at) {
  const item = spanItems[row.items[at]];
  const site = sites.get(item.sites[0]);
  const op = ops.get(site ? rootOf(site)?.op : item.ops[0]);
  const time = quantity(row.ends[at] - row.starts[at], "ns");
  return op ? [shortOpName(op), lineOfOp(op), time] : [site?.kernel ?? item.label, time];
}

// The part of each op in the time of an item: by the costs of the dispatch's ops, else evenly.
function partsOfItem(item) {
  const site = sites.get(item.sites[0]);
  if (!site || !site.members.length) return item.ops.map((op) => [op, 1 / item.ops.length]);
  const cost = (member) => (measured ? ofMetric(member.attributed) ?? 0 : 0);
  const all = site.members.reduce((sum, member) => sum + cost(member), 0);
  return site.members.map((member) => [member.op, all ? cost(member) / all : 1 / site.members.length]);
}

const TOP_OF_RANGE = 5;

// The spans in a range of times: time and number of kernel calls, and the ops with most of that time.
function sumSpans([from, to], isSelected) {
  const times = new Map(); // by item
  let [count, sum] = [0, 0];
  for (const row of spansDrawn.rows) {
    if (!row.isTall) continue;
    for (let at = firstOver(row.ends, from); at < row.starts.length && row.starts[at] < to; at++) {
      const time = Math.min(to, row.ends[at]) - Math.max(from, row.starts[at]);
      times.set(row.items[at], (times.get(row.items[at]) ?? 0) + time);
      sum += time;
      count++;
    }
  }
  const found = new Map(); // by name and line: time, and the op with most of it
  for (const [item, time] of times) {
    for (const [id, part] of partsOfItem(spanItems[item])) {
      const op = ops.get(id);
      const words = op ? shortOpName(op) + " " + lineOfOp(op) : id;
      const entry = found.get(words) ?? { words, time: 0, id, most: 0 };
      entry.time += part * time;
      if (part * time > entry.most) Object.assign(entry, { id, most: part * time });
      found.set(words, entry);
    }
  }
  const top = [...found.values()].filter((entry) => entry.time > 0).sort((a, b) => b.time - a.time);
  const words = [(isSelected ? "Selected " : "In view ") + quantity(Math.round(to - from), "ns") + " from " + quantity(Math.round(from), "ns") + ": " + plural(count, "kernel call") + ", " + quantity(Math.round(sum), "ns") + " in kernels. "];
  const links = top.slice(0, TOP_OF_RANGE).flatMap(({ words, time, id }, at) => [
    at ? ", " : "Top ops: ", link(words, id), " " + quantity(Math.round(time), "ns") + " (" + share(time, sum) + ")",
  ]);
  const hint = isSelected ? "Escape clears the selection." : "Drag with Shift to sum a range.";
  byId("spans-sum").replaceChildren(...words, ...links, links.length ? ". " : "", make("small", "", hint));
}

// The ops of a dispatch site, the largest shares first.
function sharesOfSite(site) {
  const cost = (member) => (measured ? ofMetric(member.attributed) ?? 0 : 0);
  const all = site.members.reduce((sum, member) => sum + cost(member), 0);
  const ranked = [...site.members].sort((a, b) => cost(b) - cost(a));
  return ranked.map((member) => member.op + " " + (ops.get(member.op)?.node || (ops.get(member.op)?.name ?? "")) + (all ? " " + share(cost(member), all) : ""));
}

function describeSpan(row, at) {
  const item = spanItems[row.items[at]];
  const parts = [quantity(row.ends[at] - row.starts[at], "ns") + " at " + quantity(row.starts[at], "ns") + " of " + callName(functionCalls[row.callAt(at)])];
  const of = item.sites.map((id) => sites.get(id)).filter(Boolean);
  const siteText = of.length > 3 ? "one of " + of.length + " dispatches" : of.map((site) => site.id).join(" or ");
  const opTexts = of.length === 1 ? sharesOfSite(of[0]) : item.ops.map((id) => id + " " + (ops.get(id)?.node || (ops.get(id)?.name ?? "")));
  if (opTexts.length) parts.push((of.length && measured ? "shares of " + chosenMetric().name + ": " : "") + opTexts.slice(0, 4).join(", ") + (opTexts.length > 4 ? " and " + (opTexts.length - 4) + " more" : ""));
  return [siteText, item.label, ...parts].filter(Boolean).join(" · ");
}

function openSpan(row, at) {
  const item = spanItems[row.items[at]];
  const target = item.sites[0] ?? item.ops[0];
  if (target) go(target);
}

// Selections

function drawTimeline(range) {
  if (!timeline) return;
  spansDrawn ??= new Spans(byId("spans"), byId("spans-said"), {
    styleOf: styleOfSpan, labelOf: labelOfSpan, describe: describeSpan, open: openSpan,
    onSum: sumSpans,
    onRange: (shown) => keep("range", shown ? shown.map(Math.round).join("-") : ""),
  });
  spanStyles = spanItems.map(styleOfItem);
  const { rows, length } = rowsShown(chosenSpans);
  spansDrawn.set(rows, length, range);
  byId("call").value = chosenSpans.call;
  byId("beside").value = callsByKey.has(chosenSpans.beside) ? chosenSpans.beside : "";
  byId("beside").disabled = chosenSpans.call.endsWith(ALL);
  pressChoice("spans", chosenSpans.paint);
  legend("spans-legend", legendOfSpans());
}

function legendOfSpans() {
  const used = new Set(spanStyles);
  const scopes = timeline.scopes.map((name, number) => ["scope-" + Math.min(number, 7), name]);
  const none = chosenSpans.paint === "kind" ? "no op" : "no scope";
  const quiet = [["no-op", none], ["span-queue", "submission"], ["span-transfer", "transfer"], ["span-memory", "memory"]];
  const entries = [...(chosenSpans.paint === "kind" ? FAMILIES.map((name) => ["kind-" + name, name]) : scopes), ...quiet];
  return entries.filter(([style]) => used.has(style));
}

const isCall = (key) => callsByKey.has(key) || timeline.begins.some((_, run) => key === run + 1 + ALL);

function chooseCall(key) {
  if (isCall(key)) chosenSpans.call = key;
  drawTimeline();
  return chosenSpans.call;
}

function chooseBeside(key) {
  chosenSpans.beside = callsByKey.has(key) ? key : "";
  drawTimeline();
  return chosenSpans.beside;
}

function choosePaint(name) {
  if (name === "scope" || name === "kind") chosenSpans.paint = name;
  drawTimeline(spansDrawn?.range);
  return chosenSpans.paint;
}

function chooseRange(text) {
  const found = /^(\d{1,18})-(\d{1,18})$/.exec(text);
  const range = found && Number(found[1]) < Number(found[2]) ? [Number(found[1]), Number(found[2])] : undefined;
  drawTimeline(range);
  return range ? text : "";
}

const isInTimeline = (call) => callsByKey.has(callKey(call));

// A button next to a slow call that opens it in the timeline, or a note that it is not there.
function wayToSpan(call, site) {
  if (!timeline) return null;
  if (!isInTimeline(call)) return make("small", "", "not in the timeline");
  return makeButton("timeline", () => showSpan(callsByKey.get(callKey(call)), site, call.start_ns));
}

function showSpan(number, site, start_ns) {
  keep("call", chooseCall(callKey(functionCalls[number])));
  keep("beside", chooseBeside(""));
  const { run, begin_ns } = functionCalls[number];
  const began = start_ns - timeline.begins[run - 1] - begin_ns;
  let best = null;
  for (const row of spansDrawn.rows) {
    row.starts.forEach((start, at) => {
      if (!spanItems[row.items[at]].sites.includes(site.id)) return;
      if (!best || Math.abs(start - began) < Math.abs(best.row.starts[best.at] - began)) best = { row, at };
    });
  }
  go("timeline");
  if (!best) return;
  const [start, end] = [best.row.starts[best.at], best.row.ends[best.at]];
  spansDrawn.range = spansDrawn.within([start - 2 * (end - start), end + 2 * (end - start)]);
  spansDrawn.resized();
  spansDrawn.choose(best.row, best.at);
}

function listenToTimeline() {
  const median = (number) => (number === timeline.first && functionCalls.length > 1 ? " (median)" : "");
  const options = functionCalls.map((call, number) => [callKey(call), callName(call) + ": " + quantity(lengthOfCall(number), "ns") + median(number)]);
  const every = timeline.begins.map((_, run) => [run + 1 + ALL, (severalRuns ? "run " + (run + 1) + ", " : "") + "all invocations"]);
  const add = (id, entries) => byId(id).append(...entries.map(([value, words]) => {
    const option = make("option", "", words);
    option.value = value;
    return option;
  }));
  add("call", [...(functionCalls.length > 1 ? every : []), ...options]);
  add("beside", [["", "nothing"], ...options]);
  setting("call", chosenSpans.call, chooseCall);
  setting("beside", "", chooseBeside);
  choice("spans", chosenSpans.paint, choosePaint);
  setting("range", "", chooseRange);
  byId("call").addEventListener("change", (event) => keep("call", chooseCall(event.target.value)));
  byId("beside").addEventListener("change", (event) => keep("beside", chooseBeside(event.target.value)));
  drawTimeline();
}
if (timeline) listenToTimeline();
