// Tables that keep the elements of their rows while values change. Text is always set as text, never as HTML.

import { write } from "./legend.js";

const cell = (tag, role, properties = {}) => Object.assign(document.createElement(tag), { role, ...properties });

export class Table {
  #table;
  #head;
  #body;
  #rows = new Map();

  constructor(table, caption) {
    this.#table = table;
    this.#head = table.createTHead().insertRow();
    this.#body = table.createTBody();
    const said = table.createCaption();
    said.className = "unseen";
    said.textContent = caption;
    // A narrow page shows rows as blocks (style.css). The roles keep it a table for screen readers.
    for (const [node, role] of [[table, "table"], [table.tHead, "rowgroup"], [this.#body, "rowgroup"], [this.#head, "row"]]) {
      node.setAttribute("role", role);
    }
  }

  /**
   * `rows` have an `id`, `cells` of text, of which the first is the row's head, maybe a `title` for the head in place of its
   * own text, which may be cut off, and maybe a `mark`, which stands before the head. Without rows there is no table.
   */
  show(heads, rows) {
    this.#table.hidden = rows.length === 0;
    this.#cells(this.#head, heads, (at) => cell("th", "columnheader", { scope: "col", className: at ? "" : "first" }));
    const ids = new Set(rows.map((row) => row.id));
    for (const [id, row] of this.#rows) {
      if (ids.has(id)) continue;
      row.remove();
      this.#rows.delete(id);
    }
    rows.forEach(({ id, cells, mark, title }, at) => {
      if (!this.#rows.has(id)) this.#rows.set(id, cell("tr", "row"));
      const row = this.#rows.get(id);
      if (this.#body.rows[at] !== row) this.#body.insertBefore(row, this.#body.rows[at] ?? null);
      const make = (place) => (place ? cell("td", "cell") : cell("th", "rowheader", { scope: "row" }));
      this.#cells(row, cells, make);
      cells.forEach((_, place) => (row.cells[place].dataset.label = heads[place]));
      row.cells[0].title = title ?? cells[0];
      this.#mark(row, mark);
    });
  }

  #cells(row, texts, make) {
    while (row.cells.length > texts.length) row.lastElementChild.remove();
    texts.forEach((text, at) => {
      if (!row.cells[at]) row.append(make(at)), row.cells[at].append(document.createElement("span"));
      write(row.cells[at].lastElementChild, text);
    });
  }

  #mark(row, mark) {
    const first = row.cells[0];
    if (row.dataset.mark === (mark?.key ?? "")) return;
    row.dataset.mark = mark?.key ?? "";
    if (first.children.length > 1) first.firstElementChild.remove();
    if (mark) first.prepend(mark.make());
  }
}
