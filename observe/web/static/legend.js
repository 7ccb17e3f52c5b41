// A chart's legend: the lines' names, and their values at the time under the pointer. A click hides or shows a line.

import { MARKERS, element } from "./chart.js";

/** A sample of a line, as the chart draws it. */
export function swatch({ look, dashed, marked, limit }) {
  const classes = limit ? "limit" : `look-${look}${dashed ? " dashed" : ""}`;
  const group = element("g", { class: `line ${classes}` }, element("path", { d: "M1 6h26" }));
  if (!limit && (!dashed || marked)) {
    group.append(element("path", { class: "marker", d: MARKERS[look], transform: "translate(14 6)" }));
  }
  return element("svg", { viewBox: "0 0 28 12", width: 28, height: 12, "aria-hidden": "true" }, group);
}

/** Changes a text only if it differs, so that nothing moves and screen readers do not repeat it. */
export function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export class Legend {
  #list;
  #entries = new Map();
  hidden = new Set();

  constructor(list, changed) {
    this.#list = list;
    this.changed = changed;
  }

  /** `groups` have an `id`, a `label`, a `title`, a `look`, and `values` of a `label` and a `text`. */
  show(groups) {
    const ids = new Set(groups.map((group) => group.id));
    for (const [id, entry] of this.#entries) {
      if (ids.has(id)) continue;
      entry.item.remove();
      this.#entries.delete(id);
    }
    groups.forEach((group, at) => {
      const entry = this.#entries.get(group.id) ?? this.#add(group);
      if (this.#list.children[at] !== entry.item) this.#list.insertBefore(entry.item, this.#list.children[at] ?? null);
      entry.button.setAttribute("aria-pressed", String(!this.hidden.has(group.id)));
      this.#mark(entry, group.look);
      write(entry.name, group.label);
      entry.button.title = group.title ?? group.label;
      group.values.forEach(({ label, text }, place) => {
        write(entry.values[place].label, label);
        write(entry.values[place].text, text);
      });
    });
  }

  /** Shows the sample of an entry's line, whose style can change. */
  #mark(entry, { look, dashed, marked, limit }) {
    const style = [look, dashed, marked, limit].join();
    if (entry.look === style) return;
    if (entry.look) entry.button.firstElementChild.remove();
    entry.look = style;
    entry.button.prepend(swatch({ look, dashed, marked, limit }));
  }

  #add(group) {
    const make = (tag, className) => Object.assign(document.createElement(tag), { className });
    const [item, button, name] = [make("li", ""), make("button", ""), make("span", "name")];
    button.type = "button";
    const all = make("span", "values");
    button.append(name, " ", all);
    const values = group.values.map(() => {
      const [value, label, text] = [make("span", "value"), make("span", "what"), make("span", "number")];
      value.append(label, " ", text);
      all.append(value, " ");
      return { label, text };
    });
    button.addEventListener("click", () => {
      if (!this.hidden.delete(group.id)) this.hidden.add(group.id);
      this.changed();
    });
    item.append(button);
    const entry = { item, button, name, values, look: "" };
    this.#entries.set(group.id, entry);
    return entry;
  }
}
