// The named things of the page, for the search.
function allNamed() {
  const entry = (kind, label, about, open) => ({ kind, label, about, open, text: (label + " " + about).toLowerCase() });
  return [
    ...data.ops.map((op) => entry("op", op.ids, [op.name, op.line_after[0] || op.line_before[0], op.scope].filter(Boolean).join(" · "), () => go(op.key))),
    ...kernelNames.map(({ A, B }, number) => entry("kernel", [...new Set([A, B].filter(Boolean))].join(" → "), "", () => go("kernel" + number))),
    ...data.scopes.map((scope) => entry("scope", scope.name, "", () => openFiltered("scopes", scope.name))),
    ...data.sources.map((source, index) => entry("file", source.label, "", () => go("F" + index))),
  ];
}

function openFiltered(id, words) {
  tables.get(id).filterBy(words);
  keep(id + ".filter", words);
  go(id);
}

// Line 12 of files that match `net.py:12`, on both sides.
function linesNamed(words) {
  const match = /^(.*):(\d+)$/.exec(words);
  if (!match) return [];
  const lines = [...sourceTexts].map(([id, { source, side }]) => ({ source, key: id + "L" + match[2], about: source.same ? "" : side === "A" ? "before" : "after" }));
  return lines.filter(({ source, key }) => source.label.toLowerCase().includes(match[1]) && byId(key))
    .map(({ source, key, about }) => ({ kind: "line", label: source.label + ":" + match[2], about, open: () => go(key) }));
}
