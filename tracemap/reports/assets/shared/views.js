// Views with tabs; one is visible at a time. A view gets the event "show" when it becomes visible.
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
  document.documentElement.classList.add("shown");
  if (focus) tabs[view].focus();
  tabs[view].scrollIntoView({ block: "nearest", inline: "nearest" });
  panels[view].dispatchEvent(new Event("show"));
}

const showPanel = (id) => show(panels.findIndex((panel) => panel.id === id), false);

// Goes to an anchor; the page defines `follow`.
function go(name) {
  if (location.hash === "#" + name) follow();
  else location.hash = name;
}
