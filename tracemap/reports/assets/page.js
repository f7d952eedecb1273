"use strict";
// Makes the page quick to move about in: views as tabs, metrics, tables, and the way from line to sites to lines.
// All text from the model is set as text, never as markup.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const ops = new Map(data.ops.map((op) => [op.id, op]));
  const sites = new Map(data.sites.map((site) => [site.id, site]));
  const kernelNumber = new Map(data.kernels.map((kernel, index) => [kernel.name, index]));
  const byId = (id) => document.getElementById(id);
  const tabs = [...document.querySelectorAll("[role=tab]")];
  const panels = tabs.map((tab) => byId(tab.getAttribute("aria-controls")));
  const inspector = byId("inspector");
  let metric = data.metric;
  let view = 0;
  let selectedLine = "";

  // Elements

  function make(name, className, ...children) {
    const element = document.createElement(name);
    if (className) element.className = className;
    element.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
    return element;
  }

  function link(text, anchor, title) {
    if (!anchor) return make("span", "", text);
    const element = make("a", "", text);
    element.href = "#" + encodeURIComponent(anchor);
    if (title) element.title = title;
    return element;
  }

  function fateBadge(op) {
    const badge = make("span", "fate", op.fate);
    badge.classList.add("fate-" + op.fate);
    badge.title = op.reason;
    return badge;
  }

  const exactTitle = (element, amount) => {
    if (amount) element.title = String(amount[0]);
    return element;
  };
  const costOf = (row) => (metric >= 0 && row.costs.length ? row.costs[metric] : null);
  const bar = (amount) => {
    const measured = metric >= 0 ? data.metrics[metric].measured : 0;
    const steps = amount && amount[0] > 0 && measured > 0 ? Math.min(20, Math.max(1, Math.round((20 * amount[0]) / measured))) : 0;
    return make("b", "bar w" + steps);
  };

  // Views

  function show(index, focus) {
    view = (index + tabs.length) % tabs.length;
    tabs.forEach((tab, position) => {
      const on = position === view;
      tab.setAttribute("aria-selected", String(on));
      tab.tabIndex = on ? 0 : -1;
      panels[position].hidden = !on;
    });
    if (focus) tabs[view].focus();
    tables.get(panels[view].id)?.draw();
  }

  const showPanel = (id) => show(panels.findIndex((panel) => panel.id === id), false);

  // Lines

  const lineKey = (source, line) => "F" + source + "L" + line;

  function lineOf(key) {
    const match = /^F(\d+)L(\d+)$/.exec(key);
    if (!match || !data.sources[match[1]]) return null;
    const source = data.sources[match[1]];
    return { key, source, index: Number(match[1]), number: Number(match[2]), use: source.lines[match[2]] };
  }

  function linesOfOp(op) {
    const keys = [];
    data.sources.forEach((source, index) => {
      for (const line of source.lineOfOp.get(op) ?? []) keys.push(lineKey(index, line));
    });
    return keys;
  }

  // Which lines an op stands on; in Python only its innermost one, or half the file would light up for each site.
  for (const source of data.sources) {
    source.lineOfOp = new Map();
  }
  for (const op of data.ops) {
    for (const anchor of [op.place[1], op.python[1]]) {
      const line = anchor && lineOf(anchor);
      if (line) line.source.lineOfOp.set(op.id, [line.number]);
    }
  }

  function markLines(selected, related) {
    for (const row of document.querySelectorAll(".l.selected, .l.related")) row.classList.remove("selected", "related");
    for (const key of related) byId(key)?.classList.add("related");
    if (selected) byId(selected)?.classList.add("selected");
  }

  function relatedTo(siteIds) {
    const keys = new Set();
    for (const id of siteIds) {
      for (const member of sites.get(id)?.members ?? []) for (const key of linesOfOp(member.op)) keys.add(key);
    }
    return keys;
  }

  function paintLines() {
    data.sources.forEach((source, index) => {
      for (const [number, use] of Object.entries(source.lines)) {
        if (!use.costs.length) continue;
        const [attributed, inclusive, level, own, all] = use.costs[metric];
        const gutter = byId(lineKey(index, number)).firstElementChild;
        const cell = (name) => gutter.querySelector("b." + name);
        const shown = attributed[0] || !inclusive[0];
        gutter.className = level ? "g h" + level : "g";
        cell("a").textContent = shown ? attributed[1] : "";
        cell("a").title = attributed[0];
        cell("s").textContent = shown ? attributed[2] : "";
        cell("bar").className = "bar w" + own + " v" + all;
        cell("i").textContent = inclusive[1];
        cell("i").title = inclusive[0];
      }
    });
  }

  // Details

  function inspect(title, ...content) {
    const close = make("button", "", "close");
    close.type = "button";
    close.addEventListener("click", closeInspector);
    inspector.replaceChildren(make("div", "bar-top", make("h2", "", title), close), ...content);
    inspector.hidden = false;
    inspector.scrollTop = 0;
  }

  function closeInspector() {
    inspector.hidden = true;
    markLines("", []);
  }

  function costTable(rows) {
    const body = make("tbody");
    for (const [label, amount] of rows) {
      body.append(make("tr", "", make("th", "", label), exactTitle(make("td", "num", amount[1]), amount), make("td", "num", amount[2])));
    }
    return make("table", "", body);
  }

  function opCard(op, selected) {
    const cost = costOf(op);
    const card = make("div", selected ? "card selected" : "card");
    card.append(make("h3", "", make("span", "", link(op.id, op.id), " ", make("code", "", op.name)), fateBadge(op)));
    const where = make("div", "facts", link(op.place[0], op.place[1]));
    if (op.python[0]) where.append(" · ", link(op.python[0], op.python[1]));
    if (op.scope) where.append(" · ", op.scope);
    card.append(where, make("div", "facts", op.reason));
    const inside = op.kernels.filter((name) => kernelNumber.has(name)).slice(0, 4);
    if (inside.length) {
      const links = inside.flatMap((name, place) => [place ? ", " : "", link(name, "kernel" + kernelNumber.get(name) + "-" + op.id)]);
      card.append(make("div", "facts", "in ", ...links));
    }
    if (!cost) return card;
    const rows = [["attributed", cost.attributed], ["inclusive", cost.inclusive], ["at least", cost.low], ["at most", cost.high]];
    card.append(costTable(rows));
    if (cost.sampled) {
      const [low, high] = cost.sampled;
      card.append(make("div", "facts", "95 % interval of the samples: " + low[1] + " – " + high[1]));
    }
    if (op.calls) card.append(make("div", "facts", op.calls[1] + " calls" + spreadText(cost.spread)));
    return card;
  }

  const spreadText = (spread) =>
    spread ? ", median " + spread[0][1] + " (p10 " + spread[1][1] + ", p90 " + spread[2][1] + ")" : "";

  function memberRow(member, mark) {
    const op = ops.get(member.op);
    const name = make("td", member.root ? "root" : "", link(member.op, member.op), " ", op ? make("code", "", op.name) : "");
    if (member.root) name.append(" ", make("small", "", "root"));
    if (op) name.append(make("br"), link(op.place[0], op.place[1]), " ", link(op.python[0], op.python[1]));
    const evidence = make("td", "evidence", member.evidence);
    evidence.title = member.operations + " operations, " + member.bytes;
    const amount = metric >= 0 && member.costs.length ? member.costs[metric] : null;
    const row = make("tr", mark === member.op ? "selected" : "", name, evidence);
    row.append(exactTitle(make("td", "num", amount ? amount[1] : "–"), amount));
    return row;
  }

  function siteCard(site, selected, mark) {
    const cost = costOf(site);
    const card = make("div", selected ? "card selected" : "card");
    card.append(make("h3", "", make("span", "", link(site.id, site.id)), make("span", "", cost ? cost.total[1] : site.load ? "not measured" : "")));
    card.append(make("div", "facts", make("code", "", site.kernel)));
    const facts = make("div", "facts", "command " + site.command);
    if (site.calls) facts.append(" · " + site.calls[1] + " calls");
    facts.append(spreadText(cost?.spread));
    if (site.path.length) {
      facts.append(" · through ");
      site.path.forEach((id, position) => facts.append(position ? " › " : "", link(id, ops.has(id) ? id : "")));
    }
    card.append(facts);
    for (const note of site.notes) card.append(make("div", "warn", note));
    if (site.members.length) card.append(make("table", "", make("tbody", "", ...site.members.map((member) => memberRow(member, mark)))));
    return card;
  }

  const LIMIT = 40; // cards in the details: a function's line may lead to thousands of sites

  function cards(ids, table, card) {
    const found = ids.map((id) => table.get(id)).filter(Boolean);
    const shown = found.slice(0, LIMIT).map((row) => card(row));
    if (found.length > LIMIT) shown.push(make("p", "facts", "and " + (found.length - LIMIT) + " more, see the table"));
    return shown;
  }

  const plural = (count, word) => count + " " + word + (count === 1 ? "" : "s");

  function inspectLine(line) {
    const use = line.use;
    const cost = (id) => costOf(ops.get(id))?.attributed[0] ?? -1;
    const opIds = use.ops.concat(use.parts).sort((a, b) => cost(b) - cost(a));
    const content = cards(opIds, ops, (op) => opCard(op, false));
    if (use.sites.length) content.push(make("h3", "", plural(use.sites.length, "site")));
    content.push(...cards(use.sites, sites, (site) => siteCard(site, false, opIds.length === 1 ? opIds[0] : "")));
    inspect(line.source.label + ":" + line.number, ...content);
  }

  function selectLine(key) {
    const line = lineOf(key);
    if (!line) return false;
    showPanel("F" + line.index);
    byId(key)?.scrollIntoView({ block: "nearest" });
    selectedLine = key;
    if (line.use) {
      markLines(key, relatedTo(line.use.sites.length <= LIMIT ? line.use.sites : []));
      inspectLine(line);
    } else {
      markLines(key, []);
      inspector.hidden = true;
    }
    return true;
  }

  function reveal(keys) {
    const here = keys.filter((key) => panels[view].id === "F" + lineOf(key).index);
    const key = here[0] ?? keys[0];
    if (!key) return;
    showPanel("F" + lineOf(key).index);
    byId(key)?.scrollIntoView({ block: "nearest" });
    return key;
  }

  function selectOp(id) {
    const op = ops.get(id);
    const key = reveal([op.place[1], op.python[1]].filter(Boolean));
    markLines(key, relatedTo(op.sites));
    inspect(id, opCard(op, true), ...cards(op.sites, sites, (site) => siteCard(site, false, id)));
  }

  function selectSite(id) {
    const site = sites.get(id);
    const members = [...site.members].sort((a, b) => b.root - a.root);
    const key = reveal(members.flatMap((member) => linesOfOp(member.op)));
    markLines(key, relatedTo([id]));
    inspect(id, siteCard(site, true, ""), ...cards(site.members.map((member) => member.op), ops, (op) => opCard(op, false)));
  }

  // Addresses: #overview, #F0, #F0L12, #op12, #site3

  function follow() {
    let name = location.hash.slice(1);
    try {
      name = decodeURIComponent(name);
    } catch {
      return;
    }
    if (panels.some((panel) => panel.id === name)) showPanel(name);
    else if (selectLine(name)) return;
    else if (/^kernel\d/.test(name)) showPanel("kernels");
    else if (ops.has(name)) selectOp(name);
    else if (sites.has(name)) selectSite(name);
  }

  function go(name) {
    if (location.hash === "#" + name) follow();
    else location.hash = name;
  }

  // Tables

  const number = (amount) => (amount ? amount[0] : null);
  const amountCell = (amount) => exactTitle(make("td", "num", amount ? amount[1] : "–"), amount);
  const shareCell = (amount) => make("td", "num", amount ? amount[2] : "–");
  const callsCell = (row) => make("td", "num", row.calls ? row.calls[1] : row.load ? "not measured" : "–");
  const natural = new Intl.Collator("en", { numeric: true });

  const column = (label, value, cell, numeric) => ({ label, value, cell, numeric });
  const text = (label, value, cell) => column(label, value, cell ?? ((row) => make("td", "", value(row))), false);
  const amounts = (label, pick) => column(label, (row) => number(pick(row)), (row) => amountCell(pick(row)), true);
  const measured = data.metrics.length > 0;

  const opColumns = [
    text("op", (op) => op.id, (op) => make("td", "", link(op.id, op.id))),
    text("name", (op) => op.name, (op) => make("td", "mono", op.name)),
    text("line", (op) => op.place[0], (op) => make("td", "", link(op.place[0], op.place[1]))),
    text("python", (op) => op.python[0], (op) => make("td", "", link(op.python[0], op.python[1]))),
    text("scope", (op) => op.scope),
    text("function", (op) => op.function),
    text("fate", (op) => op.fate, (op) => make("td", "", fateBadge(op))),
    column("sites", (op) => op.sites.length, (op) => make("td", "num", String(op.sites.length)), true),
    ...(measured ? [
      column("calls", (op) => number(op.calls), callsCell, true),
      amounts("attributed", (op) => costOf(op)?.attributed),
      column("share", (op) => number(costOf(op)?.attributed), (op) => shareCell(costOf(op)?.attributed), true),
      amounts("inclusive", (op) => costOf(op)?.inclusive),
      amounts("low", (op) => costOf(op)?.low),
      amounts("high", (op) => costOf(op)?.high),
      amounts("median", (op) => costOf(op)?.spread?.[0]),
      amounts("p10", (op) => costOf(op)?.spread?.[1]),
      amounts("p90", (op) => costOf(op)?.spread?.[2]),
    ] : []),
    text("kernel", (op) => op.kernels.join(" "), (op) => make("td", "mono", op.kernels.join(" "))),
    text("reason", (op) => op.reason, (op) => make("td", "text", op.reason)),
  ];

  const siteColumns = [
    text("site", (site) => site.id, (site) => make("td", "", link(site.id, site.id))),
    text("kernel", (site) => site.kernel, (site) => make("td", "mono", site.kernel)),
    text("root", (site) => rootName(site), (site) => make("td", "", ...rootCell(site))),
    column("members", (site) => site.members.length, (site) => make("td", "num", String(site.members.length)), true),
    text("function", (site) => site.function),
    text("path", (site) => site.path.join(" "), (site) => make("td", "", ...site.path.flatMap((id) => [link(id, ops.has(id) ? id : ""), " "]))),
    text("command", (site) => site.command),
    ...(measured ? [
      column("calls", (site) => number(site.calls), callsCell, true),
      amounts("total", (site) => costOf(site)?.total),
      column("share", (site) => number(costOf(site)?.total), (site) => shareCell(costOf(site)?.total), true),
      amounts("median", (site) => costOf(site)?.spread?.[0]),
      amounts("p10", (site) => costOf(site)?.spread?.[1]),
      amounts("p90", (site) => costOf(site)?.spread?.[2]),
    ] : []),
    text("notes", (site) => site.notes.join("; "), (site) => make("td", "text", site.notes.join("; "))),
  ];

  const rootOf = (site) => site.members.find((member) => member.root);
  const rootName = (site) => ops.get(rootOf(site)?.op)?.name ?? "";
  function rootCell(site) {
    const op = ops.get(rootOf(site)?.op);
    return op ? [link(op.id, op.id), " ", make("span", "mono", op.name), " ", link(op.place[0], op.place[1])] : ["–"];
  }

  const scopeAmount = (list) => (metric >= 0 && list.length ? list[metric] : null);
  const scopeColumns = [
    column("scope", (row) => row.order, (row) => {
      const indent = make("span", "indent", "\u00a0".repeat(4 * Math.max(0, row.path.length - 1)));
      return make("td", "mono", indent, row.path.at(-1) ?? "(no scope)");
    }, false),
    column("ops", (row) => row.ops, (row) => make("td", "num", String(row.ops)), true),
    ...(measured ? [
      amounts("inclusive", (row) => scopeAmount(row.inclusive)),
      column("share", (row) => number(scopeAmount(row.inclusive)), (row) => shareCell(scopeAmount(row.inclusive)), true),
      column("bar", (row) => number(scopeAmount(row.inclusive)), (row) => make("td", "", bar(scopeAmount(row.inclusive))), false),
      amounts("own", (row) => scopeAmount(row.attributed)),
    ] : []),
    text("path", (row) => row.path.join("/")),
  ];
  data.scopes.forEach((row, order) => (row.order = order));

  const PAGE = 300; // rows drawn at once

  class Table {
    constructor(panel, rows, columns, sorted) {
      this.panel = panel;
      this.rows = rows;
      this.columns = columns;
      this.sorted = sorted;
      this.falling = columns[sorted].numeric;
      this.limit = PAGE;
      this.drawn = "";
      this.filter = make("input");
      this.filter.type = "search";
      this.filter.placeholder = "filter: words, all must occur";
      this.filter.setAttribute("aria-label", "Filter the table");
      this.filter.addEventListener("input", () => this.draw());
      this.count = make("span");
      this.count.setAttribute("role", "status");
      this.head = make("tr");
      this.body = make("tbody");
      this.more = make("button", "more", "show all");
      this.more.type = "button";
      this.more.addEventListener("click", () => {
        this.limit = Infinity;
        this.draw();
      });
      columns.forEach((entry, index) => this.head.append(this.headCell(entry, index)));
      panel.append(make("div", "filter", this.filter, this.count), make("table", "", make("thead", "", this.head), this.body), this.more);
    }

    headCell(entry, index) {
      const button = make("button", "", entry.label);
      button.type = "button";
      const cell = make("th", entry.numeric ? "num" : "", button);
      cell.scope = "col";
      button.addEventListener("click", () => {
        this.falling = this.sorted === index ? !this.falling : entry.numeric;
        this.sorted = index;
        this.draw();
      });
      return cell;
    }

    words(row) {
      row.words ??= this.columns.map((entry) => String(entry.value(row) ?? "")).join(" ").toLowerCase();
      return row.words;
    }

    ordered() {
      const wanted = this.filter.value.toLowerCase().split(/\s+/).filter(Boolean);
      const kept = this.rows.filter((row) => wanted.every((word) => this.words(row).includes(word)));
      const value = this.columns[this.sorted].value;
      const sign = this.falling ? -1 : 1;
      // What is unknown comes last, whichever way round; ties keep the order of the program.
      return kept.sort((a, b) => {
        const [x, y] = [value(a), value(b)];
        if (x === null || y === null || x === "" || y === "") return (x === null || x === "") - (y === null || y === "");
        return sign * (typeof x === "number" ? x - y : natural.compare(x, y));
      });
    }

    draw() {
      const state = [metric, this.filter.value, this.sorted, this.falling, this.limit].join("|");
      if (state === this.drawn || this.panel.hidden) return;
      this.drawn = state;
      const rows = this.ordered();
      const shown = rows.slice(0, this.limit);
      this.body.replaceChildren(...shown.map((row) => make("tr", "", ...this.columns.map((entry) => entry.cell(row)))));
      this.count.textContent = shown.length + " of " + this.rows.length + " shown" + (rows.length > shown.length ? ", " + rows.length + " match" : "");
      this.more.hidden = rows.length <= shown.length;
      [...this.head.children].forEach((cell, index) => {
        cell.setAttribute("aria-sort", index === this.sorted ? (this.falling ? "descending" : "ascending") : "none");
      });
    }
  }

  const tables = new Map();
  function addTable(id, rows, columns, label) {
    const sorted = Math.max(0, columns.findIndex((entry) => entry.label === label));
    if (byId(id)) tables.set(id, new Table(byId(id), rows, columns, sorted));
  }
  addTable("ops", data.ops, opColumns, "attributed");
  addTable("sites", data.sites, siteColumns, "total");
  addTable("scopes", data.scopes, scopeColumns, "scope");

  function paintTopOps() {
    const target = byId("top-ops");
    if (!target) return;
    const cost = (op) => costOf(op)?.attributed;
    const top = data.ops.filter((op) => cost(op)?.[0] > 0).sort((a, b) => cost(b)[0] - cost(a)[0]).slice(0, 12);
    const body = make("tbody");
    for (const op of top) {
      const row = make("tr", "", make("td", "", link(op.id, op.id)), make("td", "mono", op.name));
      row.append(make("td", "", link(op.place[0], op.place[1])), make("td", "", link(op.python[0], op.python[1])), make("td", "", op.scope));
      row.append(amountCell(cost(op)), shareCell(cost(op)), make("td", "", bar(cost(op))));
      body.append(row);
    }
    target.replaceChildren(make("table", "plain", body));
    for (const label of document.querySelectorAll(".metric-name")) label.textContent = data.metrics[metric].name;
  }

  function choose(index) {
    metric = index;
    byId("metric").value = String(index);
    paintLines();
    paintTopOps();
    tables.forEach((table) => table.draw());
    if (!inspector.hidden) follow();
  }

  // Keys

  function step(keys, by) {
    if (!keys.length) return;
    const at = keys.indexOf(selectedLine);
    go(keys[at < 0 ? (by > 0 ? 0 : keys.length - 1) : (at + by + keys.length) % keys.length]);
  }

  const sourceShown = () => data.sources.findIndex((source, index) => "F" + index === panels[view].id);

  function stepHottest(by) {
    if (metric < 0) return;
    let index = sourceShown();
    if (index < 0) index = data.sources.findIndex((source) => source.hottest[metric].length);
    if (index >= 0) step(data.sources[index].hottest[metric].map((line) => lineKey(index, line)), by);
  }

  function stepLine(by) {
    const index = Math.max(0, sourceShown());
    if (data.sources[index]) step(Object.keys(data.sources[index].lines).map((line) => lineKey(index, line)), by);
  }

  const showKeys = () => byId("keys").showModal();
  const keys = {
    n: () => stepHottest(1),
    p: () => stepHottest(-1),
    j: () => stepLine(1),
    k: () => stepLine(-1),
    t: changeTheme,
    m: () => metric >= 0 && choose((metric + 1) % data.metrics.length),
    "?": showKeys,
    "/": () => tables.get(panels[view].id)?.filter.focus(),
    Escape: closeInspector,
  };

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || byId("keys").open) return;
    if (event.target.matches("input, select")) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    const onTab = event.target.matches("[role=tab]");
    if (onTab && event.key.startsWith("Arrow")) show(view + (event.key === "ArrowRight" ? 1 : -1), true);
    else if (onTab && (event.key === "Home" || event.key === "End")) show(event.key === "Home" ? 0 : -1, true);
    else if (/^[1-9]$/.test(event.key) && tabs[event.key - 1]) go(panels[event.key - 1].id);
    else if (Object.hasOwn(keys, event.key)) keys[event.key]();
    else return;
    event.preventDefault();
  });

  for (const panel of document.querySelectorAll(".source")) {
    panel.addEventListener("click", (event) => {
      const row = event.target.closest(".l:not(.head)");
      if (!row || event.target.closest("a") || String(getSelection())) return;
      go(row.id);
    });
  }
  byId("metric")?.addEventListener("change", (event) => choose(Number(event.target.value)));
  byId("theme").addEventListener("click", changeTheme);
  byId("help").addEventListener("click", showKeys);
  byId("keys-close").addEventListener("click", () => byId("keys").close());
  addEventListener("hashchange", follow);

  show(0, false);
  paintTopOps();
  follow();
})();
