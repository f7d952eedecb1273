// Views of which one is shown at a time, each with a tab. A view hears the event "show" when it is its turn.
const tabs = [...document.querySelectorAll("[role=tab]")];
const panels = tabs.map((tab) => byId(tab.getAttribute("aria-controls")));
let view = 0;

function show(number, focus) {
  view = (number + tabs.length) % tabs.length;
  tabs.forEach((tab, index) => {
    const on = index === view;
    tab.setAttribute("aria-selected", String(on));
    tab.tabIndex = on ? 0 : -1;
    panels[index].hidden = !on;
  });
  if (focus) tabs[view].focus();
  panels[view].dispatchEvent(new Event("show"));
}

const showPanel = (id) => show(panels.findIndex((panel) => panel.id === id), false);

// To what a name of the page's addresses names; `follow` is the page's own.
function go(name) {
  if (location.hash === "#" + name) follow();
  else location.hash = name;
}
