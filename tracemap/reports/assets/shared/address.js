// What the page shows stands in its address: first what it names, then what was chosen where that is not how it begins,
// `#op12?metric=duration_ns`. Such an address can be sent, and back and forward lead through what was chosen. An address
// that says nothing of choices, such as those of links, leaves them as they are.
const settings = new Map(); // by key: how it begins, how it is now, and what makes it so

// `apply` takes a text, which may be anybody's, and returns the one that it came to.
function setting(key, initial, apply) {
  settings.set(key, { initial, value: initial, apply });
}

function chosenSettings() {
  const found = {};
  for (const [key, { initial, value }] of settings) if (value !== initial) found[key] = value;
  return found;
}

function writeAddress(how, name) {
  const chosen = chosenSettings();
  const told = new URLSearchParams(chosen).toString();
  history[how]({ chosen }, "", "#" + encodeURIComponent(name) + (told && "?" + told));
}

// `asStep`: one that back undoes.
function keep(key, value, asStep = false) {
  const entry = settings.get(key);
  if (entry.value === value) return;
  entry.value = value;
  writeAddress(asStep ? "pushState" : "replaceState", named() || panels[view].id);
}

function restoreSettings() {
  const told = location.hash.split("?", 2)[1];
  const chosen = history.state?.chosen ?? (told === undefined ? null : Object.fromEntries(new URLSearchParams(told)));
  if (!chosen) return writeAddress("replaceState", named());
  for (const [key, entry] of settings) {
    const value = Object.hasOwn(chosen, key) ? String(chosen[key]) : entry.initial;
    if (value !== entry.value) entry.value = entry.apply(value);
  }
}

// What buttons choose: each has its value in `data-KEY`, and the one that is chosen is pressed.
const choiceButtons = (key) => document.querySelectorAll("[data-" + key + "]");

function choice(key, initial, apply) {
  setting(key, initial, apply);
  for (const button of choiceButtons(key)) button.addEventListener("click", () => keep(key, apply(button.dataset[key])));
}

function pressChoice(key, value) {
  for (const button of choiceButtons(key)) button.setAttribute("aria-pressed", String(button.dataset[key] === value));
}
