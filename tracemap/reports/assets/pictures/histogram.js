// Histogram of the calls of a dispatch site by wall time, on a logarithmic axis; the bins come from Python. Marks above it
// are the slowest calls, with links to the timeline.
const LENGTHS = { width: 360, height: 84, top: 14, base: 66, left: 4, right: 4, none: 14 };
const binOf = (time) => data.bins_of_octave * Math.log2(time);
const edgeOf = (bin) => 2 ** (bin / data.bins_of_octave);

// Round times for the ticks of an axis, at most five on wide ranges.
function roundTimes(from, to) {
  if (to < 4 * from) return charts.scaleLinear([from, to], [0, 1]).ticks(4);
  for (const factors of [[1, 2, 5], [1, 3], [1]]) {
    const times = [];
    for (let power = Math.floor(Math.log10(from)); 10 ** power <= to; power++) times.push(...factors.map((factor) => factor * 10 ** power));
    const inside = times.filter((time) => time >= from && time <= to);
    if (inside.length <= 5) return inside;
  }
  return [];
}

function histogramOfCalls(site, slow) {
  const [none, first, counted] = data.lengths[site.id];
  const all = counted.reduce((sum, count) => sum + count, none);
  const bars = counted.map((count, at) => ({ count, from: edgeOf(first + at), to: edgeOf(first + at + 1), at: first + at })).filter(({ count }) => count);
  const left = LENGTHS.left + (none ? LENGTHS.none : 0);
  const x = charts.scaleLinear([first, first + Math.max(1, counted.length)], [left, LENGTHS.width - LENGTHS.right]);
  const most = Math.max(none, ...counted);
  const height = (count) => Math.max(1.5, (count / most) * (LENGTHS.base - LENGTHS.top));
  const svg = charts.select(document.createElementNS("http://www.w3.org/2000/svg", "svg")).attr("class", "lengths").attr("viewBox", "0 0 " + LENGTHS.width + " " + LENGTHS.height).attr("role", "group");
  const words = ({ count, from, to }) => quantity(Math.round(from), "ns") + " to " + quantity(Math.round(to), "ns") + ": " + plural(count, "call");
  const peak = bars.find(({ count }) => count === Math.max(...counted));
  svg.attr("aria-label", "Wall time of " + plural(all, "call") + (peak ? "; mode: " + words(peak) : ""));
  const shown = none ? [{ count: none, from: 0, to: 1, x: LENGTHS.left, width: LENGTHS.none - 4 }, ...bars] : bars;
  svg.selectAll("rect").data(shown).join("rect").attr("class", "own")
    .attr("x", (bar) => (bar.x ?? x(bar.at)).toFixed(1)).attr("width", (bar) => (bar.width ?? Math.max(0.5, x(bar.at + 1) - x(bar.at) - 0.6)).toFixed(1))
    .attr("y", ({ count }) => (LENGTHS.base - height(count)).toFixed(1)).attr("height", ({ count }) => height(count).toFixed(1)).append("title").text(words);
  svg.append("path").attr("class", "span-lines").attr("d", "M0," + (LENGTHS.base + 0.5) + "H" + LENGTHS.width);
  const ticks = counted.length ? roundTimes(edgeOf(first), edgeOf(first + counted.length)) : [];
  const labels = ticks.length ? ticks : counted.length ? [edgeOf(first)] : [];
  svg.append("g").attr("class", "lengths-axis").selectAll("text").data(labels).join("text").attr("y", LENGTHS.height - 4)
    .attr("x", (time) => Math.min(LENGTHS.width - 22, Math.max(left + 18, x(binOf(time))))).attr("text-anchor", "middle").text((time) => quantity(Math.round(time), "ns"));
  markSlowest(svg, site, slow, x);
  const marksText = slow.some(isInTimeline) ? "; points: slowest calls, click to open the timeline" : "";
  return make("div", "facts", "wall time of single calls" + (all > site.calls ? ", including other dispatches of the kernel" : "") + marksText, svg.node());
}

// Marks the slowest calls; those in the timeline are links to it.
function markSlowest(svg, site, slow, x) {
  const timed = slow.filter((call) => call.duration_ns >= 1);
  const marks = svg.append("g").selectAll("g").data(timed).join("g").attr("class", "slow")
    .attr("transform", (call) => "translate(" + Math.min(LENGTHS.width - 5, x(binOf(call.duration_ns))).toFixed(1) + ",7)");
  marks.append("circle").attr("r", 4);
  marks.append("title").text((call) => "invocation " + known(call.invocation, "count") + ": " + quantity(call.duration_ns, "ns") + (isInTimeline(call) ? "" : "; not in the timeline"));
  const open = (event, call) => {
    if (event.type === "keydown" && event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    event.stopPropagation();
    showSpan(callsByKey.get(callKey(call)), site, call.start_ns);
  };
  marks.filter(isInTimeline).attr("role", "button").attr("tabindex", 0).classed("linked", true)
    .attr("aria-label", (call) => "invocation " + known(call.invocation, "count") + ", " + quantity(call.duration_ns, "ns") + ", in the timeline").on("click keydown", open);
}
