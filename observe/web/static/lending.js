// Who lends what to whom: this host, its loans and the other hosts. Hidden while lending is off.

import { get } from "./api.js";
import { bytes, duration, percent } from "./format.js";
import { write } from "./legend.js";
import { Table } from "./tables.js";

const at = (id) => document.getElementById(id);

/** A line about a host's role and memory. */
function inWords({ host, role, waiting, draining, dry_run, memory, spare_bytes }) {
  const marks = [waiting && "waits for lenders", draining && "drained", dry_run && "dry run"].filter(Boolean);
  const share = (part) => percent(part, memory.total_bytes);
  const thresholds = `borrows above ${share(memory.upper_bytes)}, gives back below ${share(memory.lower_bytes)}`;
  return `${[`${host}: ${role}`, ...marks].join(", ")}. Memory ${share(memory.used_bytes)} used (${thresholds}); can spare ${bytes(spare_bytes)}.`;
}

/** Whether what lies with a host can't be reached. */
export const isAway = (health) => health === "unreachable" || health === "refused";

/** A state, followed by the host's health unless that is ok. */
export function stateOf({ state, health }) {
  return health === "ok" ? state : `${state}, ${health}`;
}

/** A row for each host: its spare memory, its health, since when, and the reason. */
export function peerRows(peers) {
  return peers.map((peer) => ({
    id: peer.name,
    cells: [peer.name, peer.address, peer.rack || "–", bytes(peer.spare_bytes), peer.health, duration(peer.health_s), peer.reason || "–"],
    bad: isAway(peer.health) ? [4] : [],
  }));
}

/** A row for each loan: lender, borrower, size and state. */
export function loanRows({ host, lent, borrowed, devices }) {
  const device = (loan) => devices.find((it) => it.device === loan.device)?.path || "–";
  const given = lent.map((loan) => ({
    id: `lent ${loan.borrower} ${loan.loan}`,
    cells: [host, loan.borrower, bytes(loan.bytes), bytes(loan.used_bytes), stateOf(loan), `${Math.floor(loan.lease_ms / 1000)} s`, "–"],
    bad: isAway(loan.health) ? [4] : [],
  }));
  const held = borrowed.map((loan) => ({
    id: `held ${loan.lender} ${loan.loan}`,
    cells: [loan.lender, host, bytes(loan.bytes), "–", stateOf(loan), `${Math.floor(loan.lease_ms / 1000)} s`, device(loan)],
    bad: isAway(loan.health) ? [4] : [],
  }));
  return [...given, ...held];
}

export class Lending {
  #loans = new Table(at("loans").querySelector("table"), "Loans");
  #devices = new Table(at("loan-devices").querySelector("table"), "Borrowed devices");
  #peers = new Table(at("loan-peers").querySelector("table"), "Other hosts");

  /** Shows what the daemon says; gives it. */
  async refresh() {
    const status = await get("/v1/lending");
    at("lending").hidden = status.role === "off";
    if (status.role === "off") return status;
    write(at("lending-now"), inWords(status));
    const loans = loanRows(status);
    this.#loans.show(["Lender", "Borrower", "Size", "Used", "State", "Lease", "Device"], loans);
    write(at("loans-none"), loans.length ? "" : "No loans now.");
    const deviceRows = status.devices.map((device) => ({
      id: String(device.device),
      cells: [
        device.path || String(device.device),
        bytes(device.bytes),
        bytes(device.used_bytes),
        stateOf(device),
        [device.slabs_mirrored, device.slabs_single, device.slabs_unreachable, device.slabs_lost].join(" / "),
        `${Math.round(device.longest_stall_us / 1000)} ms`,
      ],
      bad: [isAway(device.health) && 3, (device.slabs_unreachable || device.slabs_lost) && 4].filter(Boolean),
    }));
    this.#devices.show(["Device", "Size", "Used", "State", "Slabs with 2 / 1 / 0 copies in reach / lost", "Longest stall"], deviceRows);
    this.#peers.show(["Host", "Address", "Rack", "Can spare", "Health", "For", "Reason"], peerRows(status.peers));
    return status;
  }
}
