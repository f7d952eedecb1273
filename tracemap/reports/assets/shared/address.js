// The address holds the state of the page: an anchor, then settings that differ from their defaults, as in
// `#op12?metric=duration_ns`. It can be shared, and back and forward restore earlier settings. An address without settings,
// such as a link's, keeps the current ones.
const settings = new Map(); // by key: initial value, current value, and the function that applies a value

// `apply` takes any text, which may be invalid, and returns the value that it set.
function setting(key, initial, apply) {
  settings.set(key, { initial, value: initial, apply });
}

function chosenSettings() {
  const changed = {};
  for (const [key, { initial, value }] of settings) if (value !== initial) changed[key] = value;
  return changed;
}

function writeAddress(how, name) {
  const chosen = chosenSettings();
  const query = new URLSearchParams(chosen).toString();
  history[how]({ chosen }, "", "#" + encodeURIComponent(name) + (query && "?" + query));
}

// `asStep`: the browser's back button undoes it.
function keep(key, value, asStep = false) {
  const entry = settings.get(key);
  if (entry.value === value) return;
  entry.value = value;
  writeAddress(asStep ? "pushState" : "replaceState", named() || panels[view].id);
}

function restoreSettings() {
  const query = location.hash.split("?", 2)[1];
  const chosen = history.state?.chosen ?? (query === undefined ? null : Object.fromEntries(new URLSearchParams(query)));
  if (!chosen) return writeAddress("replaceState", named());
  for (const [key, entry] of settings) {
    const value = Object.hasOwn(chosen, key) ? String(chosen[key]) : entry.initial;
    if (value !== entry.value) entry.value = entry.apply(value);
  }
}

// Groups of buttons with their values in `data-KEY`; the selected button is pressed.
const choiceButtons = (key) => document.querySelectorAll("[data-" + key + "]");

function choice(key, initial, apply) {
  setting(key, initial, apply);
  for (const button of choiceButtons(key)) button.addEventListener("click", () => keep(key, apply(button.dataset[key])));
}

function pressChoice(key, value) {
  for (const button of choiceButtons(key)) button.setAttribute("aria-pressed", String(button.dataset[key] === value));
}
