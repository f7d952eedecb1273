// The details of the selection, on top of the other views.
const details = byId("inspector");

function showDetails(title, close, ...content) {
  details.replaceChildren(make("div", "bar-top", make("h2", "", title), makeButton("close", close)), ...content);
  details.hidden = false;
  details.scrollTop = 0;
}
