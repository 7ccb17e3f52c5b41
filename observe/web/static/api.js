// Requests to the daemon. The token stays in this tab, and is sent only in a request's header.

const KEY = "spillway-token";
const TIMEOUT_MS = 10_000;

/** The daemon refused the request, with a reason. */
export class Refused extends Error {}

/** The daemon requires a token, or another one. */
export class NoToken extends Error {}

/** The daemon does not answer. */
export class Lost extends Error {}

export const token = {
  get: () => sessionStorage.getItem(KEY),
  set: (text) => sessionStorage.setItem(KEY, text),
  forget: () => sessionStorage.removeItem(KEY),
};

/** Moves a token out of the address (#token=...), so that the address neither shows nor keeps it. */
export function takeTokenFromAddress() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given === null) return false;
  history.replaceState(null, "", location.pathname);
  if (given) token.set(given);
  return given !== "";
}

async function send(path, method, body) {
  const headers = { Authorization: `Bearer ${token.get()}` };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let answer;
  let text;
  try {
    answer = await fetch(path, {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      cache: "no-store",
      credentials: "omit",
      redirect: "error",
      signal: AbortSignal.timeout(TIMEOUT_MS),
    });
    text = await answer.text();
  } catch (error) {
    throw new Lost(error.message);
  }
  if (answer.status === 401) throw new NoToken();
  let value;
  try {
    value = JSON.parse(text);
  } catch {
    throw new Lost(`the daemon's answer (${answer.status}) is not understood`);
  }
  if (!answer.ok) throw new Refused(value.detail ?? `the daemon says ${answer.status}`);
  return value;
}

export const get = (path) => send(path, "GET");
export const put = (path, body) => send(path, "PUT", body);
