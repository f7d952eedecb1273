"use strict";
// Runs before layout, so that nothing flashes: marks that scripts are enabled, and applies the selected theme.
document.documentElement.classList.add("js");
try {
  const theme = localStorage.getItem("tracemap-theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // Storage may be forbidden. The system's theme applies then.
}
