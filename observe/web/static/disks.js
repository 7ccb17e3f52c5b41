// Tmem disks: whether a guest uses each, and what it reads and writes. Hidden without disks in the configuration.

import { get } from "./api.js";
import { bytes, count, duration, pages } from "./format.js";
import { Table } from "./tables.js";

const HEADS = ["Disk", "Client", "State", "Size", "Held", "Unread", "Read", "Written", "Discarded", "Demoted",
  "Refused", "Errors", "Second guests", "Reason"];

const at = (id) => document.getElementById(id);

/** Why the guest was refused, or else why a request last failed. */
const reasonOf = ({ reason, last_error, last_error_s }) => reason ?? (last_error ? `${duration(last_error_s)} ago: ${last_error}` : "–");

/** A row for each disk. */
export function diskRows(disks) {
  return disks.map(({ name, client, state, state_s, bytes: size, held_pages, unread_pages, statistics: its, ...why }) => ({
    id: name,
    title: name,
    cells: [
      name,
      client,
      `${state}, ${duration(state_s)}`,
      bytes(size),
      held_pages === null ? "–" : pages(held_pages),
      pages(unread_pages),
      pages(its.store_read_pages + its.file_read_pages + its.zero_read_pages),
      pages(its.store_written_pages + its.file_written_pages),
      pages(its.discarded_pages),
      pages(its.demoted_pages),
      pages(its.refused_pages),
      count(its.errors),
      count(its.refused_guests),
      reasonOf(why),
    ],
    bad: [state === "refused" && 2, its.errors && 11].filter(Boolean),
  }));
}

export class Disks {
  #table = new Table(at("disks").querySelector("table"), "Disks of guests");

  /** Shows what the daemon says; gives it. */
  async refresh() {
    const disks = await get("/v1/disks");
    at("disks").hidden = disks.length === 0;
    this.#table.show(HEADS, diskRows(disks));
    return disks;
  }
}
