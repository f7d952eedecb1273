"use strict";
// Runs before the page is laid out, so that nothing flashes: marks that scripts run, and takes the chosen theme.
document.documentElement.classList.add("js");
try {
  const theme = localStorage.getItem("tracemap-theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // Storage may be forbidden; the system's theme is used then.
}
