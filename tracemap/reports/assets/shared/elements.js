// Elements. All text from the model is set as text, never as markup.
const byId = (id) => document.getElementById(id);

function make(name, className, ...children) {
  const element = document.createElement(name);
  if (className) element.className = className;
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

function makeButton(text, onClick, className) {
  const button = make("button", className, text);
  button.type = "button";
  button.addEventListener("click", onClick);
  return button;
}

// Plain text where there is no anchor: not everything that is named is on the page.
function link(text, anchor) {
  if (!anchor) return make("span", "", text);
  const element = make("a", "", text);
  element.href = "#" + encodeURIComponent(anchor);
  return element;
}

// What the address names, before what it says of choices; an address that cannot be decoded names nothing.
function named() {
  try {
    return decodeURIComponent(location.hash.slice(1).split("?", 1)[0]);
  } catch {
    return "";
  }
}

const rememberInAddress = (anchor) => history.replaceState(null, "", "#" + encodeURIComponent(anchor));
