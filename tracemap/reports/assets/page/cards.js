// Cards with the details of an op or a dispatch site.
const table = (...rows) => make("table", "", make("tbody", "", ...rows));
const costRow = (label, sum) => make("tr", "", make("th", "", label), amountCell(sum), shareCell(sum));
const costWords = (sum) => amount(sum, chosenMetric());

function opCard(op, selected) {
  const cost = costOf(op);
  const card = make("div", selected ? "card selected" : "card");
  card.append(make("h3", "", make("span", "", link(op.id, op.id), " ", make("code", "", op.name)), outcomeBadge(op)));
  const where = make("div", "facts", ...(op.node ? [op.node, " · "] : []), link(...op.line));
  if (op.python[0]) where.append(" · ", link(...op.python));
  if (op.scope) where.append(" · ", op.scope);
  card.append(where, make("div", "facts", op.reason));
  const kernels = op.kernels.filter((name) => kernelNumber.has(name)).slice(0, 4);
  if (kernels.length) {
    const links = kernels.flatMap((name, order) => [order ? ", " : "", link(name, "kernel" + kernelNumber.get(name) + "-" + op.id)]);
    card.append(make("div", "facts", "in ", ...links));
  }
  if (!cost) return card;
  const rows = [["attributed", cost.attributed], ["inclusive", cost.inclusive], ["at least", cost.low], ["at most", cost.high]];
  card.append(table(...rows.map((row) => costRow(...row))));
  if (cost.likely) {
    const [low, high] = cost.likely;
    const method = data.rule === "code" ? "estimated from machine code: " : "95 % interval of the samples: ";
    const remedy = data.rule === "code" ? "; record with --sample to measure" : "; record longer";
    card.append(make("div", "facts", method + costWords(low) + " – " + costWords(high) + (cost.uncertain ? remedy : "")));
  }
  if (cost.uncertain && !cost.likely) {
    card.append(make("div", "facts", "uncertain by 50 % or more: noisy run, invocations differ widely"));
  }
  if (op.gain) {
    const [, , , reason] = op.gain;
    card.append(make("div", "facts", "if 2x faster, the program gains " + (reason ? "nothing: " + reason : gainWords(op.gain))));
  }
  if (op.errors) card.append(make("div", "facts", "largest error of its dispatches: " + errorText(op)));
  if (op.calls !== null) card.append(make("div", "facts", callsWords(op.calls)));
  if (cost.per_invocation) card.append(make("div", "facts", "single invocations" + spreadText(cost.per_invocation)));
  return card;
}

function spreadText(spread) {
  if (!spread) return "";
  const [median, p10, p90] = spread.map((value) => single(value, chosenMetric()));
  return ": median " + median + " (p10 " + p10 + ", p90 " + p90 + ")";
}

function memberRow(member, mark) {
  const op = ops.get(member.op);
  const name = make("td", member.root ? "root" : "", link(member.op, member.op), " ", op ? make("code", "", shortName(op)) : "");
  if (member.root) name.append(" ", make("small", "", "root"));
  if (op) name.append(make("br"), link(...nodeOrLine(op)), " ", link(...op.python));
  const evidence = make("td", "evidence", member.evidence);
  const [read, written] = [member.bytes_read, member.bytes_written].map((size) => known(size, "bytes"));
  evidence.title = known(member.operations, "count") + " operations, " + read + " read, " + written + " written";
  return make("tr", mark === member.op ? "selected" : "", name, evidence, amountCell(ofMetric(member.attributed)));
}

const known = (value, unit) => (isKnown(value) ? quantity(value, unit) : "unknown");

function slowRow(call, site) {
  const run = call.run > 1 ? "run " + call.run + ", " : "";
  const start = isKnown(call.start_ns) ? ", started at " + call.start_ns + " ns" : "";
  const label = run + "invocation " + known(call.invocation, "count") + start;
  const times = [["wall", call.duration_ns], ["cpu", call.cpu_ns]].filter(([, time]) => isKnown(time));
  const words = times.map(([clock, time]) => clock + " " + quantity(time, "ns")).join(", ");
  return make("tr", "", make("td", "", label), make("td", "num", words), make("td", "", wayToSpan(call, site)));
}

function siteCard(site, selected, mark) {
  const cost = costOf(site);
  const card = make("div", selected ? "card selected" : "card");
  card.append(make("h3", "", make("span", "", link(site.id, site.id)), make("span", "", cost ? costWords(cost.total) : site.load_time ? "not measured" : "")));
  card.append(make("div", "facts", make("code", "", site.kernel)));
  const facts = make("div", "facts", "command " + site.command);
  if (site.calls !== null) facts.append(" · " + callsWords(site.calls));
  if (cost?.per_call) facts.append(" · single calls" + spreadText(cost.per_call));
  if (cost?.outliers) facts.append(" · " + costWords(cost.outliers) + " of outliers not included");
  if (site.path.length) {
    facts.append(" · called through ");
    site.path.forEach((id, position) => facts.append(position ? " › " : "", link(id, ops.has(id) ? id : "")));
  }
  if (isKnown(tilesOf(site))) facts.append(" · " + quantity(tilesOf(site), "count") + (tilesOf(site) === 1 ? " tile per call" : " tiles per call"));
  if (isKnown(site.imbalance_percent)) facts.append(" · imbalance " + imbalanceText(site));
  if (site.errors) facts.append(" · error " + errorText(site));
  card.append(facts);
  const slow = allUnpacked("SlowCallRow", site.slowest_calls);
  if (data.lengths[site.id]) card.append(histogramOfCalls(site, slow));
  if (slow.length) {
    const rows = slow.map((call) => slowRow(call, site));
    const slowest = make("details", "facts", make("summary", "", "slowest calls"), table(...rows));
    card.append(slowest);
  }
  if (data.together[site.id]) card.append(measuresTogether(site));
  for (const remark of site.remarks) card.append(make("div", "warn", remark));
  if (site.members.length) card.append(table(...site.members.map((member) => memberRow(member, mark))));
  return card;
}

// Mean per call.
const tilesOf = (site) => (isKnown(site.tiles) && site.calls ? site.tiles / site.calls : null);
const imbalanceText = (site) => fixed(site.imbalance_percent / 100, 2);

const LIMIT = 40; // most cards in the details, as a function's line may have thousands of dispatches

function cards(ids, table, card) {
  const rows = ids.map((id) => table.get(id)).filter(Boolean);
  const shown = rows.slice(0, LIMIT).map((row) => card(row));
  if (rows.length > LIMIT) shown.push(make("p", "facts", (rows.length - LIMIT) + " more in the table"));
  return shown;
}
