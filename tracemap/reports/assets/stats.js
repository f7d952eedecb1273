"use strict";
// One thread at a time: tabs, the anchors of heat maps, keys. Pictures and tables are in the markup.
(() => {
  const byId = (id) => document.getElementById(id);
  const tabs = [...document.querySelectorAll("[role=tab]")];
  const panels = tabs.map((tab) => byId(tab.getAttribute("aria-controls")));
  let view = 0;

  function show(number, focus) {
    view = (number + panels.length) % panels.length;
    panels.forEach((panel, place) => {
      panel.hidden = place !== view;
      tabs[place].setAttribute("aria-selected", String(place === view));
      tabs[place].tabIndex = place === view ? 0 : -1;
    });
    if (focus) tabs[view].focus();
  }

  function follow() {
    const target = byId(decodeURIComponent(location.hash.slice(1)));
    const place = panels.findIndex((panel) => target && panel.contains(target));
    show(Math.max(0, place), false);
    if (place >= 0 && target !== panels[place]) {
      target.scrollIntoView({ block: "center" });
      target.focus({ preventScroll: true });
    }
  }

  function step(by, focus) {
    show(view + by, focus);
    history.replaceState(null, "", "#" + panels[view].id);
  }

  const keys = byId("keys");
  const actions = { j: () => step(1, false), k: () => step(-1, false), t: changeTheme, "?": () => keys.showModal() };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || keys.open) return;
    const onTab = event.target.matches("[role=tab]");
    if (onTab && event.key.startsWith("Arrow")) step(event.key === "ArrowRight" ? 1 : -1, true);
    else if (Object.hasOwn(actions, event.key)) actions[event.key]();
    else return;
    event.preventDefault();
  });
  byId("theme").addEventListener("click", changeTheme);
  byId("help").addEventListener("click", () => keys.showModal());
  byId("keys-close").addEventListener("click", () => keys.close());
  addEventListener("hashchange", follow);
  follow();
})();
