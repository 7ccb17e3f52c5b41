// Tables that keep the elements of their rows while values change. Text is always set as text, never as HTML.

import { write } from "./legend.js";

/** Most rows of a table. */
export const ROWS_MAX = 200;
/** Rows of a long table before the user wants more, so that what is below it is near. A narrow page is that of style.css. */
const FEW_WIDE = 25;
const FEW_NARROW = 10;
const NARROW = "(max-width: 560px)";

const cell = (tag, role, properties = {}) => Object.assign(document.createElement(tag), { role, ...properties });

/** Rows by their values in a column: texts upwards, numbers downwards, and the other way round if `turned`. */
export function inOrder(rows, { column, turned }) {
  const compare = (a, b) => (typeof a === "number" ? b - a || 0 : a < b ? -1 : Number(a > b));
  const sign = turned ? -1 : 1;
  return rows.toSorted((a, b) => sign * compare(a.values[column], b.values[column]));
}

export class Table {
  #table;
  #head;
  #body;
  #rows = new Map();
  #more = Object.assign(document.createElement("button"), { type: "button", className: "more", hidden: true });
  #isLong = false;
  /** What the user has chosen; null before that. */
  #order = null;
  #last = [];

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
    this.#more.addEventListener("click", () => {
      this.#isLong = !this.#isLong;
      this.show(...this.#last);
    });
    table.parentElement.after(this.#more);
    matchMedia(NARROW).addEventListener("change", () => this.#last.length && this.show(...this.#last));
  }

  /**
   * `rows` have an `id`, `cells` of text, of which the first is the row's head, and maybe: a `title` for the head in place of
   * its own text, which may be cut off; a `mark`, which stands before the head; in `bad` the places of cells that need
   * attention; `values`, by which the user can order them. They are by their first value; many rows are by that of
   * the column `largest`. Without rows there is no table. Returns how many rows are beyond the most.
   */
  show(heads, rows, largest = 0) {
    this.#last = [heads, rows, largest];
    this.#table.hidden = rows.length === 0;
    this.#cells(this.#head, heads, (at) => cell("th", "columnheader", { scope: "col", className: at ? "" : "first" }));
    const few = matchMedia(NARROW).matches ? FEW_NARROW : FEW_WIDE;
    const isMany = rows.length > few;
    if (rows[0]?.values) {
      const order = this.#order ?? { column: isMany ? largest : 0, turned: false };
      rows = inOrder(rows, order);
      this.#orderHeads(order, typeof rows[0].values[order.column] === "number");
    } else if (isMany) {
      rows = rows.toSorted((a, b) => Boolean(b.bad?.length) - Boolean(a.bad?.length));
    }
    const left = Math.max(0, rows.length - ROWS_MAX);
    this.#more.hidden = !isMany;
    this.#more.setAttribute("aria-expanded", String(this.#isLong));
    write(this.#more, this.#isLong ? `Show the first ${few}` : `Show ${rows.length - left - few} more`);
    this.#show(heads, rows.slice(0, isMany && !this.#isLong ? few : ROWS_MAX));
    return left;
  }

  #show(heads, rows) {
    const ids = new Set(rows.map((row) => row.id));
    for (const [id, row] of this.#rows) {
      if (ids.has(id)) continue;
      row.remove();
      this.#rows.delete(id);
    }
    rows.forEach(({ id, cells, mark, title, bad }, at) => {
      if (!this.#rows.has(id)) this.#rows.set(id, cell("tr", "row"));
      const row = this.#rows.get(id);
      if (this.#body.rows[at] !== row) this.#body.insertBefore(row, this.#body.rows[at] ?? null);
      const make = (place) => (place ? cell("td", "cell") : cell("th", "rowheader", { scope: "row" }));
      this.#cells(row, cells, make);
      cells.forEach((_, place) => {
        row.cells[place].dataset.label = heads[place];
        row.cells[place].classList.toggle("bad", Boolean(bad?.includes(place)));
      });
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

  /** Makes the heads buttons, and says by which of them the rows are. */
  #orderHeads({ column, turned }, isNumber) {
    [...this.#head.cells].forEach((head, at) => {
      const text = head.lastElementChild;
      if (text.tagName !== "BUTTON") {
        text.replaceWith(Object.assign(document.createElement("button"), { type: "button", textContent: text.textContent }));
      }
      // A second click turns the rows round.
      head.lastElementChild.onclick = () => {
        this.#order = { column: at, turned: at === column && !turned };
        this.show(...this.#last);
      };
      const direction = isNumber === turned ? "ascending" : "descending";
      head.setAttribute("aria-sort", at === column ? direction : "none");
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
