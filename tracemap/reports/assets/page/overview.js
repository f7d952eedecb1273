// The hottest ops, on the overview.
function paintTopOps() {
  const target = byId("top-ops");
  if (!target) return;
  const cost = (op) => costOf(op)?.attributed;
  const top = data.ops.filter((op) => cost(op)?.[0] > 0).sort((a, b) => cost(b)[0] - cost(a)[0]).slice(0, 12);
  const body = make("tbody");
  for (const op of top) {
    const row = make("tr", "", make("td", "", link(op.id, op.id)), make("td", "mono", op.name));
    row.append(make("td", "", link(...op.line)), make("td", "", link(...op.python)), make("td", "", op.scope));
    row.append(amountCell(cost(op)), shareCell(cost(op)), make("td", "", bar(cost(op))));
    body.append(row);
  }
  target.replaceChildren(make("table", "plain", body));
  for (const label of document.querySelectorAll(".metric-name")) label.textContent = data.metrics[metric].name;
}
