// Makes elements. Text from the model is set as text, never as markup.
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

// A link, or plain text if the target is not on the page.
function link(text, anchor) {
  if (!anchor) return make("span", "", text);
  const element = make("a", "", text);
  element.href = "#" + encodeURIComponent(anchor);
  return element;
}

// The anchor in the address, without settings; empty if it cannot be decoded.
function named() {
  try {
    return decodeURIComponent(location.hash.slice(1).split("?", 1)[0]);
  } catch {
    return "";
  }
}

const rememberInAddress = (anchor) => history.replaceState(null, "", "#" + encodeURIComponent(anchor));
