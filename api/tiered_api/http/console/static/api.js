// Requests to the broker's public HTTP interface. The console knows nothing that these requests do not tell.
import { useEffect, useState } from "./vendor/htm-preact-3.1.1.js";
import { parseTime } from "./format.js";

export const POLL_SECONDS = 2;
const REPLY_SECONDS = 20;
const SLACK_MS = 100;
const ACT_SECONDS = 40;
const READ_BYTES = 1 << 20;
const SEARCH_BYTES = 1 << 23;

// An error as the interface states it. `status` is 0 when no reply came.
export class ApiError extends Error {
  constructor(message, status = 0, code = 0, id = "") {
    super(message);
    this.elsewhere = status ? [] : findOthers();
    this.status = status;
    this.code = code;
    this.id = id;
  }
}

// The live brokers, as the cluster named them last.
let live = [];
const namers = new Set();

export function rememberBrokers(brokers) {
  live = brokers.filter((each) => each.state === "live");
  for (const namer of namers) namer(live);
}

// Draws the caller anew when the live brokers are known or change: its commands name them.
export function useBrokers() {
  const [known, setKnown] = useState(live);
  useEffect(() => {
    namers.add(setKnown);
    setKnown(live);
    return () => namers.delete(setKnown);
  }, []);
  return known;
}

// Returns the other live brokers, each with the address of this page there: first those behind this broker's id.
export function findOthers() {
  const own = about?.node_id ?? -1;
  const others = live.filter((each) => /^https?:/.test(each.http ?? "") && each.http !== location.origin && each.node_id !== own);
  const turn = (each) => (each.node_id < own ? 1 : 0);
  return others.sort((a, b) => turn(a) - turn(b) || a.node_id - b.node_id).map((each) => [each.node_id, each.http + location.pathname + location.search]);
}

// True while no request gets a reply: the last reply came before the last request that failed had begun.
let silent = false;
let lastReply = 0;
const listeners = new Set();

function setSilent(is) {
  if (silent === is) return;
  silent = is;
  for (const listener of listeners) listener(is);
}

export function useSilence() {
  const [is, setIs] = useState(silent);
  useEffect(() => {
    listeners.add(setIs);
    setIs(silent);
    return () => listeners.delete(setIs);
  }, []);
  return is;
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

// Returns the parameter for the markers of transactions. A filter finds none of them.
export const controlQuery = (view) => (view.control && !filterQuery(view) ? "&control_records=true" : "");

// True if a view has its newest records first.
export const isBack = (view) => view.from === "end" || view.from === "before";

// Returns the query of a read of records: forward from `where` on, or back before it. The broker looks for those that fit
// the filters of `view`, and returns `most` of them at most: a search reads more bytes in each step, and gets few of them.
export function readQuery(where, view, most) {
  const filters = filterQuery(view);
  const limit = filters || isBack(view) ? `&limit=${most}` : "";
  return `records?${where}&max_bytes=${filters ? SEARCH_BYTES : READ_BYTES}${filters}${controlQuery(view)}${limit}&isolation_level=${view.open ? "read_uncommitted" : "read_committed"}`;
}

// Returns where the first read of a partition begins.
export function firstRead(view) {
  if (view.from === "end") return "before=latest";
  if (view.from === "before") return `before=${encodeURIComponent(view.at || "0")}`;
  if (view.from === "time") return `timestamp=${view.at ? parseTime(view.at) || encodeURIComponent(view.at) : 0}`;
  return `offset=${view.from === "offset" ? encodeURIComponent(view.at || "0") : "earliest"}`;
}

// Returns the next read after the reply `got` to a read at `where`; "" at the end, or at the log start.
export function nextRead(where, view, got) {
  if (isBack(view)) return got.next_before > got.log_start_offset ? `before=${got.next_before}` : "";
  const end = view.open ? got.high_watermark : got.last_stable_offset;
  const next = `offset=${got.next_offset}`;
  return got.next_offset < end && next !== where ? next : "";
}

const SILENT = "The broker does not reply. The page tries again every two seconds.";

export async function request(path, { method = "GET", body, accept = "application/json", signal } = {}) {
  const headers = { Accept: accept };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const began = performance.now();
  let reply;
  let text;
  try {
    const limit = AbortSignal.timeout((method === "GET" ? REPLY_SECONDS : ACT_SECONDS) * 1000);
    const either = signal ? AbortSignal.any([signal, limit]) : limit;
    reply = await fetch(path, { method, headers, signal: either, body: body === undefined ? undefined : JSON.stringify(body) });
    text = await reply.text();
    lastReply = performance.now();
    setSilent(false);
  } catch (fault) {
    if (fault.name === "AbortError") throw fault;
    if (began >= lastReply) setSilent(true);
    throw new ApiError(SILENT);
  }
  const value = text && reply.headers.get("Content-Type")?.includes("json") ? JSON.parse(text) : null;
  if (!reply.ok) throw new ApiError(value?.message ?? `The broker replied ${reply.status}.`, reply.status, value?.error_code, reply.headers.get("Tiered-Request-Id"));
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

// While a dialogue is open, the page beneath it stays as it is: a new list would put another row under the dialogue, or
// take it away with its row before a person has read how the act ended. What came meanwhile is shown afterwards.
const held = new Map();
const isActing = () => document.querySelector("dialog[open]") !== null;

export function showHeld() {
  const shown = [...held.values()];
  held.clear();
  for (const show of shown) show();
}

// Fetches `path` at once and then about every `seconds` while the page is visible; 0: once, null: no more. Keeps the last value beside
// an error, and forgets it when the path changes. Another `round` asks anew at once.
export function usePoll(path, seconds = POLL_SECONDS, round = 0) {
  const [state, setState] = useState({ path, value: null, error: null });
  useEffect(() => {
    if (!path || seconds === null) return undefined;
    const stop = new AbortController();
    const watch = { due: Infinity };
    let isFirst = true;
    const put = (next) => {
      held.delete(watch);
      if (isFirst || !isActing()) setState(next);
      else held.set(watch, () => setState(next));
      isFirst = false;
    };
    watch.load = async () => {
      const began = Date.now();
      watch.due = Infinity;
      let failed = false;
      try {
        const value = await request(path, { signal: stop.signal });
        put({ path, value, error: null });
      } catch (error) {
        if (error.name === "AbortError") return;
        failed = !error.status;
        put((was) => ({ path, value: was.path === path ? was.value : null, error }));
      }
      if (seconds || failed) watch.due = began + (failed ? POLL_SECONDS : seconds) * 1000 - SLACK_MS;
    };
    watched.add(watch);
    if (document.hidden) watch.due = 0;
    else watch.load();
    return () => {
      watched.delete(watch);
      held.delete(watch);
      stop.abort();
    };
  }, [path, seconds, round]);
  return state.path === path ? state : { path, value: null, error: null };
}

// The broker, the caller's principal and what the page may offer, null until the broker has told it.
let about = null;
const ABOUT = "/tiered/v1/console";

// Returns them. With `seconds` it asks again, and so tells when the broker is silent on a page that asks for nothing else.
export function useAbout(seconds = 0) {
  const [known, setKnown] = useState(about);
  const { value } = usePoll(known && !seconds ? null : ABOUT, seconds || (known ? 0 : POLL_SECONDS));
  useEffect(() => {
    if (value) {
      about = value;
      setKnown(value);
    }
  }, [value]);
  return known;
}

// Asks at once whether the broker is there.
export const lookForBroker = () => request(ABOUT).catch(() => null);

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
