// The details of the selection, next to the other views; in narrow windows, below them.
const details = byId("inspector");
const detailsHandle = make("div", "splitter");

function showDetails(title, close, ...content) {
  details.replaceChildren(make("div", "bar-top", make("h2", "", title), makeButton("close", close)), ...content);
  details.hidden = detailsHandle.hidden = false;
  details.scrollTop = 0;
}

function hideDetails() {
  details.hidden = detailsHandle.hidden = true;
}

function splitDetails() {
  const narrow = matchMedia("(max-width: 900px)");
  detailsHandle.hidden = details.hidden;
  detailsHandle.setAttribute("aria-label", "Size of the details");
  details.before(detailsHandle);
  new Splitter(detailsHandle, {
    isRow: () => narrow.matches,
    resized: () => [details, -1],
    most: () => (narrow.matches ? 0.8 * innerHeight : details.parentElement.clientWidth - 2 * SPLIT_LEAST),
    set: (size) => details.style.setProperty(narrow.matches ? "--details-high" : "--details", size),
  });
}
splitDetails();
