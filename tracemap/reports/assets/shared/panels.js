// Navigation on pages whose pictures and tables are in the markup: shows one panel at a time, and scrolls to anchors in it.
function follow() {
  const target = byId(named());
  const number = panels.findIndex((panel) => target && panel.contains(target));
  show(Math.max(0, number), false);
  if (number >= 0 && target !== panels[number]) {
    target.scrollIntoView({ block: "center" });
    target.focus({ preventScroll: true });
  }
}

function step(by, focus) {
  show(view + by, focus);
  rememberInAddress(panels[view].id);
}

listenToKeys(
  { j: () => step(1, false), k: () => step(-1, false) },
  { ArrowRight: () => step(1, true), ArrowLeft: () => step(-1, true) },
);
addEventListener("hashchange", follow);
follow();
