// Keyboard shortcuts, buttons that do the same, and the dialog that lists them.
function changeTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  try {
    localStorage.setItem("tracemap-theme", root.dataset.theme);
  } catch {
    // Storage may be forbidden. The theme lasts as long as the page then.
  }
}

// `actions` and `onTab`: functions by key; the latter apply while a tab has the focus.
function listenToKeys(actions, onTab = {}) {
  const dialog = byId("keys");
  const explain = () => dialog.showModal();
  const everywhere = { ...actions, t: changeTheme, "?": explain };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (event.target.matches("input, select")) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    const table = event.target.matches("[role=tab]") && Object.hasOwn(onTab, event.key) ? onTab : everywhere;
    if (!Object.hasOwn(table, event.key)) return;
    event.preventDefault();
    table[event.key]();
  });
  byId("theme").addEventListener("click", changeTheme);
  byId("help").addEventListener("click", explain);
  byId("keys-close").addEventListener("click", () => dialog.close());
}
