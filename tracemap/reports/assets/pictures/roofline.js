// A roofline plot: performance of ops and kernels below the peaks of the machine, on logarithmic axes. Points are links.
const ROOF = { height: 300, left: 58, right: 24, top: 26, bottom: 38 };
const perSecond = (value) => quantity(value, "count");

function drawRoofline(box, roofline, points, nameOf, anchorOf) {
  const width = box.clientWidth;
  if (!width) return;
  const computing = points.filter((point) => point.operations > 0 && point.bytes > 0);
  if (!computing.length) {
    const why = points.length ? "nothing here has both operations and memory traffic." : "the amount of work is unknown.";
    return box.replaceChildren(make("p", "facts", "Nothing to draw: " + why));
  }
  charts.select(box).selectAll("p").remove();
  const intensity = (point) => point.operations / point.bytes;
  const reached = (point) => point.operations / (point.time_ns / 1e9);
  const [peak, bandwidth] = [roofline.operations_per_second, roofline.bytes_per_second];
  const ridge = peak / bandwidth;
  const units = roofline.units.filter((unit) => unit.operations_per_second > peak);
  const domainOf = (values, more) => {
    const [low, high] = [Math.min(...values), Math.max(...values)];
    return [10 ** Math.floor(Math.log10(low) - more), 10 ** Math.ceil(Math.log10(high) + more)];
  };
  const x = charts.scaleLog(domainOf([...computing.map(intensity), ridge, ...units.map((unit) => unit.operations_per_second / bandwidth)], 0.1), [ROOF.left, width - ROOF.right]);
    const y = charts.scaleLog(domainOf([...computing.map(reached), peak, ...units.map((unit) => unit.operations_per_second)], 0), [ROOF.height - ROOF.bottom, ROOF.top]);
  const most = Math.max(...computing.map((point) => point.time_ns), 1);
  const svg = charts.select(box).selectAll("svg").data([0]).join("svg").attr("class", "roofline").attr("width", width)
    .attr("height", ROOF.height).attr("viewBox", "0 0 " + width + " " + ROOF.height).attr("role", "group")
    .attr("aria-label", "Roofline: operations per second over operations per byte");
  svg.selectAll("*").remove();
  svg.append("g").attr("class", "axis").attr("transform", "translate(0," + (ROOF.height - ROOF.bottom) + ")")
    .call(charts.axisBottom(x).tickValues(decades(x.domain())).tickFormat((value) => (value < 1 ? String(value) : perSecond(value))));
  svg.append("g").attr("class", "axis").attr("transform", "translate(" + ROOF.left + ",0)")
    .call(charts.axisLeft(y).tickValues(decades(y.domain())).tickFormat(perSecond));
  svg.append("text").attr("class", "axis-name").attr("x", width - ROOF.right).attr("y", ROOF.height - 5).attr("text-anchor", "end").text("operations per byte →");
  svg.append("text").attr("class", "axis-name").attr("x", 4).attr("y", 12).text(`↑ operations per second on ${roofline.source === "specified" ? "the GPU" : "one core"}`);
  const [from, to] = x.domain();
  const bend = Math.min(to, Math.max(from, ridge));
  const corners = [[from, from * bandwidth], [bend, Math.min(peak, bend * bandwidth)], [to, Math.min(peak, to * bandwidth)]];
  const floor = y.domain()[0];
  const onRoof = corners.map(([at, value]) => (value < floor ? [floor / bandwidth, floor] : [at, value]));
  svg.append("polyline").attr("class", "roof").attr("points", onRoof.map(([at, value]) => x(at) + "," + y(value)).join(" "));
  // Peaks in other types: dashed, with the bandwidth that reaches them.
  for (const [place, { name, operations_per_second: own }] of units.entries()) {
    const line = [[bend, Math.min(peak, bend * bandwidth)], [Math.min(to, own / bandwidth), own], [to, own]];
    svg.append("polyline").attr("class", "roof unit").attr("points", line.map(([at, value]) => x(at) + "," + y(value)).join(" "));
    svg.append("text").attr("class", "axis-name").attr("x", width - ROOF.right - 75 * place).attr("y", y(own) - 3).attr("text-anchor", "end").text(name);
  }
  svg.selectAll("a").data(computing).join("a").attr("href", (point) => "#" + encodeURIComponent(anchorOf(point)))
    .attr("aria-label", (point) => nameOf(point)).attr("class", (point) => "point " + rooflineClass(point.roofline_ns / point.time_ns))
    .append("circle").attr("cx", (point) => x(intensity(point))).attr("cy", (point) => y(reached(point)))
    .attr("r", (point) => 3 + 9 * Math.sqrt(point.time_ns / most)).append("title").text(nameOf);
}

// Powers of ten within a domain.
function decades([from, to]) {
  const powers = [];
  for (let power = Math.ceil(Math.log10(from) - 1e-9); 10 ** power <= to * 1.0001; power++) powers.push(10 ** power);
  return powers;
}

// CSS class of a share of the roofline, in five steps; unknown shares have a class of their own.
function rooflineClass(part) {
  if (!(part >= 0)) return "at-unknown";
  return "at-" + (part < 0.1 ? 0 : part < 0.25 ? 1 : part < 0.5 ? 2 : part < 0.75 ? 3 : 4);
}
const ROOFLINE = [["at-0", "under 10 %"], ["at-1", "10 to 25 %"], ["at-2", "25 to 50 %"], ["at-3", "50 to 75 %"], ["at-4", "75 % and more"], ["at-unknown", "unknown"]];
