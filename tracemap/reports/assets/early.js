"use strict";
// Runs before the page is laid out, so that nothing flashes: marks that scripts run, and takes the chosen theme.
// What it declares is there for the page's own script.
document.documentElement.classList.add("js");
try {
  const theme = localStorage.getItem("tracemap-theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // Storage may be forbidden; the system's theme is used then.
}

function changeTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  try {
    localStorage.setItem("tracemap-theme", root.dataset.theme);
  } catch {
    // Storage may be forbidden; the choice lasts as long as the page.
  }
}
