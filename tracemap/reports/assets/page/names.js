// The named things of the page, for the search.
function allNamed() {
  const entry = (kind, label, about, open) => ({ kind, label, about, open, text: (label + " " + about).toLowerCase() });
  const rows = [
    ...nodeRows.map((op) => entry("node", nodeName(op), [op.id, shortName(op), op.line[0]].join(" · "), () => go(op.id))),
    ...data.sources.flatMap((source, index) => functionsOf(source, index).map(([name, line]) => entry("function", name, source.label + ":" + line, () => go(lineKey(index, line))))),
    ...data.ops.map((op) => entry("op", op.id, [op.name, op.node, op.line[0], op.python[0], op.scope].filter(Boolean).join(" · "), () => go(op.id))),
    ...data.sites.map((site) => entry("dispatch", site.id, site.kernel, () => go(site.id))),
    ...data.kernels.map((kernel, index) => entry("kernel", kernel.name, "", () => go("kernel" + index))),
    ...data.scopes.filter((scope) => scope.path.length).map((scope) => entry("scope", scope.path.join("/"), "", () => openScope(scope))),
    ...data.sources.map((source, index) => entry("file", source.label, "", () => go("F" + index))),
    ...data.sources.flatMap((source, index) => linesOf(index).map(([id, text], at) => ({ ...entry("line", source.label + ":" + (at + 1), text.trim().slice(0, 200), () => go(id)), isLast: true }))),
  ];
  return rows;
}

// The ids and texts of a file's lines.
const linesOf = (index) => [...byId("F" + index).querySelectorAll(".chunk .l[id]")].map((row) => [row.id, row.lastElementChild.textContent]);

// Functions and classes that a source defines, with their lines.
const DEFINITION = { python: /^\s*(?:async\s+)?(?:def|class)\s+(\w+)/, mlir: /(?:^|\s)[\w.]*func\b[^@"]*@("[^"]*"|[\w.$-]+)/ };
function functionsOf(source, index) {
  return linesOf(index).flatMap(([, text], at) => {
    const match = DEFINITION[source.language].exec(text.slice(0, 1000));
    return match ? [[match[1].replaceAll('"', ""), at + 1]] : [];
  });
}

function openScope(scope) {
  tables.get("scopes").filterBy(scope.path.join("/"));
  keep("scopes.filter", scope.path.join("/"));
  go("scopes");
}

// Line 12 of all files that match `net.py:12`.
function linesNamed(text) {
  const match = /^(.*):(\d+)$/.exec(text);
  if (!match) return [];
  const matching = data.sources.map((source, index) => [source, "F" + index + "L" + match[2]]);
  return matching
    .filter(([source, key]) => source.label.toLowerCase().includes(match[1]) && byId(key))
    .map(([source, key]) => ({ kind: "line", label: source.label + ":" + match[2], about: "", open: () => go(key) }));
}
