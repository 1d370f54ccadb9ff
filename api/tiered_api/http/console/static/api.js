// Requests to the broker's public HTTP interface. The console knows nothing that these requests do not tell.
import { useEffect, useState } from "./vendor/htm-preact-3.1.1.js";

export const POLL_SECONDS = 2;
const REPLY_SECONDS = 20;
const SLACK_MS = 100;
const ACT_SECONDS = 40;
const READ_BYTES = 1 << 20;
const SEARCH_BYTES = 1 << 23;

// An error as the interface states it. `status` is 0 when no reply came.
export class ApiError extends Error {
  constructor(message, status = 0, code = 0) {
    super(message);
    const others = status ? [] : live.filter((each) => each.http && each.http !== location.origin);
    this.elsewhere = others.map((each) => [each.node_id, each.http + location.pathname + location.search]);
    this.status = status;
    this.code = code;
  }
}

// The live brokers, as the cluster named them last.
let live = [];

export function rememberBrokers(brokers) {
  live = brokers.filter((each) => each.state === "live");
}

// Returns the brokers for Kafka clients, as one text.
export function bootstrapBrokers() {
  return live.map((each) => each.address).filter(Boolean).join(",") || "HOST:PORT";
}

// The filters of a page of messages, and the parameters of the broker's search.
export const FILTERS = { filter: "contains", key: "key", header: "header", json: "json" };

// Returns the parameters of a query for the filters of `view`, each with `&` before it.
export function filterQuery(view) {
  return Object.entries(FILTERS).filter(([name]) => view[name]).map(([name, parameter]) => `&${parameter}=${encodeURIComponent(view[name])}`).join("");
}

// Returns the query of a read of records from `where` on. The broker looks for those that fit the filters of `view`, and
// returns `most` of them at most: a search reads more bytes in each step, and gets few of them.
export function readQuery(where, view, most) {
  const filters = filterQuery(view);
  const search = filters ? `&max_bytes=${SEARCH_BYTES}${filters}&limit=${most}` : `&max_bytes=${READ_BYTES}`;
  return `records?${where}${search}&isolation_level=${view.open ? "read_uncommitted" : "read_committed"}`;
}

const SILENT = "The broker does not reply. The page tries again every two seconds.";

export async function request(path, { method = "GET", body, accept = "application/json", signal } = {}) {
  const headers = { Accept: accept };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let reply;
  let text;
  try {
    const limit = AbortSignal.timeout((method === "GET" ? REPLY_SECONDS : ACT_SECONDS) * 1000);
    const either = signal ? AbortSignal.any([signal, limit]) : limit;
    reply = await fetch(path, { method, headers, signal: either, body: body === undefined ? undefined : JSON.stringify(body) });
    text = await reply.text();
  } catch (fault) {
    if (fault.name === "AbortError") throw fault;
    throw new ApiError(SILENT);
  }
  const value = text && reply.headers.get("Content-Type")?.includes("json") ? JSON.parse(text) : null;
  if (!reply.ok) throw new ApiError(value?.message ?? `The broker replied ${reply.status}.`, reply.status, value?.error_code);
  return value;
}

// What the page shows and asks for again: { due, load }. All of it shares one request in POLL_SECONDS, so that an open
// page costs the broker the same whatever it shows. A hidden page asks for nothing.
const watched = new Set();

setInterval(() => {
  const now = Date.now();
  if (document.hidden) return;
  let next = null;
  for (const each of watched) if (each.due <= now && (!next || each.due < next.due)) next = each;
  next?.load();
}, POLL_SECONDS * 1000);

// Fetches `path` at once and then about every `seconds` while the page is visible; 0: once. Keeps the last value beside
// an error, and forgets it when the path changes. Another `round` asks anew at once.
export function usePoll(path, seconds = POLL_SECONDS, round = 0) {
  const [state, setState] = useState({ path, value: null, error: null });
  useEffect(() => {
    if (!path) return undefined;
    const stop = new AbortController();
    const watch = { due: Infinity };
    watch.load = async () => {
      const began = Date.now();
      watch.due = Infinity;
      let failed = false;
      try {
        const value = await request(path, { signal: stop.signal });
        setState({ path, value, error: null });
      } catch (error) {
        if (error.name === "AbortError") return;
        failed = !error.status;
        setState((was) => ({ path, value: was.path === path ? was.value : null, error }));
      }
      if (seconds || failed) watch.due = began + (failed ? POLL_SECONDS : seconds) * 1000 - SLACK_MS;
    };
    watched.add(watch);
    if (document.hidden) watch.due = 0;
    else watch.load();
    return () => {
      watched.delete(watch);
      stop.abort();
    };
  }, [path, seconds, round]);
  return state.path === path ? state : { path, value: null, error: null };
}

let about = null;

// The caller's principal and what the page may offer, null until the broker has told it.
export function useAbout() {
  const [known, setKnown] = useState(about);
  const { value } = usePoll(known ? null : "/tiered/v1/console", known ? 0 : POLL_SECONDS);
  useEffect(() => {
    if (value) {
      about = value;
      setKnown(value);
    }
  }, [value]);
  return known;
}

let cluster = null;

// The id of the cluster, which REST v3 has in its paths.
export function useCluster() {
  const [id, setId] = useState(cluster);
  const { value, error } = usePoll(id ? null : "/v3/clusters", id ? 0 : POLL_SECONDS);
  useEffect(() => {
    if (value) {
      cluster = value.data[0].cluster_id;
      setId(cluster);
    }
  }, [value]);
  return { id, error };
}
