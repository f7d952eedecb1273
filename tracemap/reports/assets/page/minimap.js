// A map of a file's heat next to its text: shows the whole file, and a click scrolls there. The keys `n` and `p` do, too.
const MAP_STEP = 2; // pixels of one colour

class Minimap {
  constructor(panel, source) {
    this.panel = panel;
    this.source = source;
    this.rows = [...panel.querySelectorAll(".chunk .l[id]")];
    this.view = make("i");
    this.map = make("div", "map", this.view);
    this.map.setAttribute("aria-hidden", "true");
    panel.prepend(make("div", "minimap", this.map));
    this.map.addEventListener("click", (event) => {
      const part = (event.clientY - this.map.getBoundingClientRect().top) / this.map.clientHeight;
      panel.scrollTop = part * panel.scrollHeight - panel.clientHeight / 2;
    });
    panel.addEventListener("scroll", () => this.move(), { passive: true });
    new ResizeObserver(() => this.paint()).observe(panel);
  }

  // The position of every line among the visible ones.
  places() {
    let place = 0;
    return this.rows.map((row) => (row.hidden ? place : place++));
  }

  paint() {
    const height = this.panel.clientHeight;
    if (!height) return;
    this.map.style.height = height + "px";
    const places = this.places();
    const whole = this.panel.scrollHeight / ROW_HEIGHT; // lines that would fill the panel
    const heats = new Uint8Array(Math.ceil(height / MAP_STEP));
    for (const number of Object.keys(this.source.lines)) {
      const heat = useOf(this.source, number).costs[metric]?.[2];
      if (!heat) continue;
      const at = Math.min(heats.length - 1, Math.floor((places[number - 1] / whole) * heats.length));
      heats[at] = Math.max(heats[at], heat);
    }
    this.map.style.backgroundImage = gradientOf(heats);
    this.move();
  }

  move() {
    const { clientHeight, scrollHeight, scrollTop } = this.panel;
    this.view.style.height = Math.max(6, (clientHeight * clientHeight) / scrollHeight) + "px";
    this.view.style.transform = "translateY(" + (scrollTop * clientHeight) / scrollHeight + "px)";
  }
}

// Uses CSS variables, so that colours follow the theme.
function gradientOf(heats) {
  const stops = [];
  heats.forEach((heat, at) => {
    const colour = heat ? "color-mix(in srgb, var(--bar) " + (25 + 7.5 * heat) + "%, transparent)" : "transparent";
    stops.push(colour + " " + at * MAP_STEP + "px " + (at + 1) * MAP_STEP + "px");
  });
  return "linear-gradient(180deg, " + stops.join(", ") + ")";
}

const minimaps = measured ? data.sources.map((source, index) => new Minimap(byId("F" + index), source)) : [];
const paintMinimaps = () => minimaps.forEach((map) => map.paint());
