// A chart of lines over time, in SVG. Lines differ by colour, by dash and by marker.

import { clock, fit } from "./format.js";
import { nearest, thin } from "./series.js";

const NAMESPACE = "http://www.w3.org/2000/svg";
const LEFT = 68;
const RIGHT = 12;
/** Space before and after a label, and the most of a chart's width that labels take. */
const LABEL_SPACE = 16;
const LABELS_PART = 0.35;
const TOP = 12;
const BOTTOM = 24;
/** From this width, lines are labelled at their ends. */
const WIDE = 640;
/** Distance of two labels, pixels. */
const LABEL_HEIGHT = 14;

/** A marker for each line style, centred at 0 0. */
export const MARKERS = [
  "M-3.5 0a3.500 3.500 0 1 0 7 0a3.500 3.500 0 1 0-7 0",
  "M-3-3h6v6h-6z",
  "M0-4.500L4 3h-8z",
  "M0-4.500L4.500 0L0 4.500L-4.500 0z",
  "M-4-3h8L0 4.500z",
  "M-1.500-4h3v2.500h2.500v3h-2.500v2.500h-3v-2.500h-2.500v-3h2.500z",
  "M-3.500-4h7L1 0l2.500 4h-7L-1 0z",
  "M0-4.500L4-1L2.500 4h-5L-4-1z",
];

export function element(name, attributes = {}, ...children) {
  const made = document.createElementNS(NAMESPACE, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

/** Seconds between the axis's grid lines, by the span of the axis. */
const timeStep = (seconds) => [10, 15, 30, 60, 300, 600, 900].find((step) => seconds / step <= 6) ?? 900;

/** The width of a label, pixels. The font is that of `.label` in style.css. */
function labelWidth(text) {
  labelWidth.ruler ??= document.createElement("canvas").getContext("2d");
  labelWidth.ruler.font = `600 12px ${getComputedStyle(document.body).fontFamily}`;
  return labelWidth.ruler.measureText(text).width;
}

export class Chart {
  #figure;
  #svg;
  #view = null;
  #cursor = element("g", { class: "cursor" });
  #size = { width: 600, height: 240 };
  labelRoom = 0;

  /** `point` is called with the time under the pointer, or null; `read` returns its description. */
  constructor(figure, { format, ticks, point, read }) {
    this.#figure = figure;
    this.#svg = figure.querySelector("svg");
    Object.assign(this, { format, ticks, point, read });
    this.#svg.addEventListener("pointermove", (event) => this.#pointAt(event));
    this.#svg.addEventListener("pointerdown", (event) => this.#pointAt(event));
    this.#svg.addEventListener("pointerleave", () => this.point(null));
    this.#svg.addEventListener("blur", () => this.point(null));
    this.#svg.addEventListener("keydown", (event) => this.#key(event));
    new ResizeObserver(([entry]) => {
      const { width, height } = entry.contentRect;
      this.#size = { width: Math.max(width, 200), height: Math.max(height, 100) };
      if (this.#view) this.draw(this.#view);
    }).observe(this.#svg);
  }

  get #right() {
    return this.#size.width - Math.max(RIGHT, this.labelRoom);
  }

  #x(time) {
    const { from_ms, to_ms } = this.#view;
    return LEFT + ((time - from_ms) / (to_ms - from_ms)) * (this.#right - LEFT);
  }

  #y(value) {
    return TOP + (1 - value / this.top) * (this.#size.height - TOP - BOTTOM);
  }

  /**
   * Draws `times`, `from_ms` to `to_ms`, with the places `begin` to `end` of each line's `values`; `at` is the place
   * that is pointed at, or -1. Lines have a `look` (0 to 7), may be `dashed`, or a `limit`, and have a `label`.
   */
  draw(view) {
    this.#view = view;
    const { width, height } = this.#size;
    this.#svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    let most = 0;
    for (const { values } of view.lines) {
      for (let at = view.begin; at < view.end; at += 1) if (values[at] < Infinity) most = Math.max(most, values[at]);
    }
    this.labelRoom = this.#labelRoom();
    const levels = this.ticks(most);
    this.top = levels.at(-1);
    const drawn = view.lines.map((line) => this.#line(line));
    this.#svg.replaceChildren(this.#grid(levels), ...drawn, ...this.#labels(), this.#cursor);
    this.#drawCursor();
  }

  /** The width that the labels of the lines need; 0 if there are none. */
  #labelRoom() {
    const { width } = this.#size;
    if (width < WIDE || !this.#view.labels) return 0;
    const widths = this.#view.lines.map(({ label }) => (label ? Math.ceil(labelWidth(label)) : 0));
    return Math.min(Math.max(0, ...widths) + LABEL_SPACE, Math.floor(width * LABELS_PART));
  }

  #grid(levels) {
    const { from_ms, to_ms } = this.#view;
    const grid = element("g", { class: "grid", "aria-hidden": "true" });
    for (const level of levels) {
      const y = this.#y(level).toFixed(1);
      grid.append(element("path", { d: `M${LEFT} ${y}H${this.#right}` }));
      grid.append(element("text", { x: LEFT - 8, y, dy: "0.32em", "text-anchor": "end" }, this.format(level)));
    }
    const step = 1000 * timeStep((to_ms - from_ms) / 1000);
    const narrow = this.#right - LEFT < 400;
    for (let time = Math.ceil(from_ms / step) * step; time <= to_ms; time += step) {
      const x = this.#x(time);
      grid.append(element("path", { d: `M${x.toFixed(1)} ${this.#size.height - BOTTOM}v4` }));
      if ((narrow && (time / step) % 2) || x < LEFT + 16 || x > this.#right - 16) continue;
      const text = clock(time, step >= 60_000);
      grid.append(element("text", { x: x.toFixed(1), y: this.#size.height - 6, "text-anchor": "middle" }, text));
    }
    return grid;
  }

  #line(line) {
    const { times, begin, end } = this.#view;
    const { values } = line;
    let path = "";
    let drawing = false;
    for (const at of thin(values, begin, end, Math.max(1, (this.#right - LEFT) / 2))) {
      if (!Number.isFinite(values[at])) {
        drawing = false;
        continue;
      }
      path += `${drawing ? "L" : "M"}${this.#x(times[at]).toFixed(1)} ${this.#y(values[at]).toFixed(1)}`;
      drawing = true;
    }
    const look = line.limit ? "limit" : `look-${line.look}${line.dashed ? " dashed" : ""}`;
    const group = element("g", { class: `line ${look}`, "aria-hidden": "true" }, element("path", { d: path }));
    if (line.limit || (line.dashed && !line.marked)) return group;
    for (const at of this.#markerPlaces(line)) {
      const place = `translate(${this.#x(times[at]).toFixed(1)} ${this.#y(values[at]).toFixed(1)})`;
      group.append(element("path", { class: "marker", d: MARKERS[line.look], transform: place }));
    }
    return group;
  }

  /** Positions of eight markers, fixed to samples. They differ between lines, so that no marker hides another. */
  #markerPlaces({ values, look }) {
    const { times, begin, end, from_ms, to_ms } = this.#view;
    const step = (to_ms - from_ms) / 8;
    const places = [];
    for (let at = begin + 1; at < end; at += 1) {
      const turn = (time) => Math.floor(time / step + look / 8);
      if (turn(times[at]) !== turn(times[at - 1]) && Number.isFinite(values[at])) places.push(at);
    }
    return places;
  }

  /** Labels at the ends of lines, moved apart. */
  #labels() {
    if (!this.labelRoom) return [];
    const { lines, end } = this.#view;
    const ends = lines.filter((line) => line.label && Number.isFinite(line.values[end - 1]));
    const labels = ends.map((line) => ({ line, y: this.#y(line.values[end - 1]) })).sort((a, b) => a.y - b.y);
    let least = TOP;
    for (const label of labels) least = (label.y = Math.max(label.y, least)) + LABEL_HEIGHT;
    let most = this.#size.height - BOTTOM;
    for (const label of labels.toReversed()) most = (label.y = Math.min(label.y, most)) - LABEL_HEIGHT;
    return labels.map(({ line, y }) => {
      const look = line.limit ? "limit" : `look-${line.look}`;
      const text = fit(line.label, this.labelRoom - LABEL_SPACE, labelWidth);
      const at = { x: this.#right + 8, y: y.toFixed(1), dy: "0.32em", class: `label ${look}`, "aria-hidden": "true" };
      return element("text", at, text, ...(text === line.label ? [] : [element("title", {}, line.label)]));
    });
  }

  #drawCursor() {
    const { times, lines, at, begin, end } = this.#view;
    this.#cursor.replaceChildren();
    this.#svg.setAttribute("aria-valuemin", "0");
    this.#svg.setAttribute("aria-valuemax", String(Math.max(0, end - begin - 1)));
    this.#svg.setAttribute("aria-valuenow", String(Math.max(0, (at < 0 ? end - 1 : at) - begin)));
    this.#svg.setAttribute("aria-valuetext", this.read(at < 0 ? end - 1 : at));
    this.#figure.querySelector(".when").textContent = at < 0 ? "" : clock(times[at]);
    if (at < 0) return;
    const x = this.#x(times[at]).toFixed(1);
    this.#cursor.append(element("path", { d: `M${x} ${TOP}V${this.#size.height - BOTTOM}` }));
    for (const { values, look, limit } of lines) {
      if (!Number.isFinite(values[at])) continue;
      const dot = { cx: x, cy: this.#y(values[at]).toFixed(1), r: 4, class: limit ? "limit" : `look-${look}` };
      this.#cursor.append(element("circle", dot));
    }
  }

  #pointAt(event) {
    if (!this.#view) return;
    const { from_ms, to_ms, times, begin, end } = this.#view;
    const part = (event.clientX - this.#svg.getBoundingClientRect().left - LEFT) / (this.#right - LEFT);
    const at = nearest(times, from_ms + part * (to_ms - from_ms), begin, end);
    this.point(at < 0 ? null : times[at]);
  }

  #key(event) {
    if (!this.#view || this.#view.begin >= this.#view.end) return;
    const { times, begin, end, at } = this.#view;
    const here = at < 0 ? end : at;
    const leap = Math.max(2, Math.round((end - begin) / 10));
    const moves = { ArrowLeft: here - 1, ArrowDown: here - 1, ArrowRight: here + 1, ArrowUp: here + 1,
      PageDown: here - leap, PageUp: here + leap, Home: begin, End: end - 1 };
    if (event.key === "Escape") this.point(null);
    else if (event.key in moves) this.point(times[Math.min(Math.max(moves[event.key], begin), end - 1)]);
    else return;
    event.preventDefault();
  }
}
