// The form for the policy. Errors are shown in the daemon's words.

import { Lost, Refused, get, put } from "./api.js";
import { PAGE_BYTES, pages } from "./format.js";
import { write } from "./legend.js";

const MIB_PAGES = (1 << 20) / PAGE_BYTES;
const FIELDS = { p: "policy-p", threshold_pages: "policy-threshold", miss_us: "policy-miss", fairness_percent: "policy-fairness", interval_ms: "policy-interval" };

const at = (id) => document.getElementById(id);

/** How long the page confirms that a policy was set. */
const SAID_MS = 10_000;

/** A number, if it is one; else the text, which the daemon refuses with a reason. */
function number(text, scale) {
  const value = Number(text.replace(",", "."));
  if (!Number.isFinite(value)) return text;
  return scale === undefined ? value : Math.round(value * scale);
}

/** A policy in words. */
export function inWords({ policy, p, threshold_pages, miss_us, fairness_percent, interval_ms }) {
  const parts = [policy];
  if (p !== undefined) parts.push(`P ${p} %`);
  if (threshold_pages !== undefined) parts.push(`threshold ${pages(threshold_pages)}`);
  if (miss_us !== undefined) parts.push(`a miss ${miss_us} µs`);
  if (fairness_percent) parts.push(`${fairness_percent} % shared evenly`);
  parts.push(`every ${interval_ms / 1000} s`);
  return parts.join(", ");
}

export class PolicyForm {
  #kinds = [];
  #form = at("policy");
  /** Whether the user has changed a field that is not set yet. */
  #touched = false;
  /** The policy that the page confirms, in words; null if none. */
  #said = null;
  #forget = 0;

  /** `failed` gets errors other than the daemon's refusals. */
  constructor(failed) {
    this.failed = failed;
    this.#form.addEventListener("input", () => {
      this.#touched = true;
      this.#say(null);
      at("policy-error").textContent = "";
      this.#fit();
    });
    this.#form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#send();
    });
  }

  /** Shows the daemon's policy. Keeps fields that the user has changed. */
  async refresh() {
    if (this.#kinds.length === 0) this.#offer(await get("/v1/policies"));
    this.#show(await get("/v1/policy"));
  }

  /** Disables the form while the daemon can't be asked. */
  enable(connected) {
    at("policy-fields").disabled = !connected;
    if (!connected) this.#say(null);
  }

  /** Confirms a policy, for a while; null confirms none. */
  #say(policy) {
    clearTimeout(this.#forget);
    this.#said = policy;
    write(at("policy-said"), policy === null ? "" : `Set: ${policy}`);
    if (policy !== null) this.#forget = setTimeout(() => this.#say(null), SAID_MS);
  }

  #offer(kinds) {
    this.#kinds = kinds;
    const options = kinds.map(({ policy }) => Object.assign(document.createElement("option"), { value: policy, textContent: policy }));
    at("policy-name").replaceChildren(...options);
  }

  #show(policy) {
    const now = inWords(policy);
    write(at("policy-now"), `Now: ${now}`);
    // Somebody else has set another one.
    if (this.#said !== null && this.#said !== now) this.#say(null);
    if (this.#touched) return;
    at("policy-name").value = policy.policy;
    at("policy-p").value = policy.p ?? "";
    at("policy-threshold").value = policy.threshold_pages === undefined ? "" : policy.threshold_pages / MIB_PAGES;
    at("policy-miss").value = policy.miss_us ?? "";
    at("policy-fairness").value = policy.fairness_percent ?? "";
    at("policy-interval").value = policy.interval_ms / 1000;
    this.#fit();
  }

  /** Enables only the fields that apply to the policy. */
  #fit() {
    const kind = this.#kinds.find(({ policy }) => policy === at("policy-name").value);
    write(at("policy-summary"), kind?.summary ?? "");
    for (const name of ["p", "threshold_pages", "miss_us", "fairness_percent"]) at(FIELDS[name]).disabled = !kind?.parameters.includes(name);
  }

  #asked() {
    const given = (id) => (at(id).disabled ? "" : at(id).value.trim());
    const asked = { policy: at("policy-name").value };
    if (given(FIELDS.p)) asked.p = number(given(FIELDS.p));
    if (given(FIELDS.threshold_pages)) {
      asked.threshold_pages = number(given(FIELDS.threshold_pages), MIB_PAGES);
    }
    if (given(FIELDS.miss_us)) asked.miss_us = number(given(FIELDS.miss_us), 1);
    if (given(FIELDS.fairness_percent)) {
      asked.fairness_percent = number(given(FIELDS.fairness_percent), 1);
    }
    if (given(FIELDS.interval_ms)) asked.interval_ms = number(given(FIELDS.interval_ms), 1000);
    return asked;
  }

  async #send() {
    this.#say(null);
    at("policy-error").textContent = "";
    try {
      const policy = await put("/v1/policy", this.#asked());
      this.#touched = false;
      this.#show(policy);
      this.#say(inWords(policy));
    } catch (error) {
      if (error instanceof Refused) at("policy-error").textContent = error.message;
      else this.failed(error);
      if (error instanceof Lost) at("policy-error").textContent = "No answer. The line above shows what is set once the daemon answers.";
    }
  }
}
