// The console: addresses, and the page of an address. index.html has the frame, which is there before any script runs.
import { html, render, useEffect, useState } from "./vendor/htm-preact-3.1.1.js";
import { ApiError, findOthers, rememberBrokers, useAbout, useCluster, usePoll, useSilence } from "./api.js";
import { ErrorBox, Loading } from "./parts.js";

const ROOT = "/console/";
const BROKERS_SECONDS = 30;
const PULSE_SECONDS = 10;
const AWAY_SECONDS = 10;

// Each pattern with the script and the name of its page, which is loaded when it is opened. A segment ":name" becomes the
// argument `name`.
const PAGES = [
  ["", () => import("./cluster.js"), "ClusterPage"],
  ["topics", () => import("./topics.js"), "TopicsPage"],
  ["topics/:topic", () => import("./topic.js"), "TopicPage"],
  ["topics/:topic/messages", () => import("./messages.js"), "MessagesPage"],
  ["groups", () => import("./groups.js"), "GroupsPage"],
  ["groups/:group", () => import("./groups.js"), "GroupPage"],
  ["tables", () => import("./tables.js"), "TablesPage"],
  ["tables/:table", () => import("./tables.js"), "TablePage"],
  ["transactions", () => import("./transactions.js"), "TransactionsPage"],
  ["access", () => import("./access.js"), "AccessPage"],
  ["settings", () => import("./operations.js"), "SettingsPage"],
  ["costs", () => import("./costs.js"), "CostsPage"],
  ["metadata", () => import("./metadata.js"), "MetadataPage"],
  ["moves", () => import("./operations.js"), "MovesPage"],
  ["audit", () => import("./operations.js"), "AuditPage"],
];

// Returns the script and the name of the page at `path`, and its arguments; null if there is none.
export function findPage(path) {
  const given = path.replace(/^\/console\/?/, "").split("/").filter(Boolean);
  for (const [pattern, load, name] of PAGES) {
    const wanted = pattern.split("/").filter(Boolean);
    if (wanted.length !== given.length) continue;
    const found = {};
    const fits = wanted.every((segment, at) => {
      if (!segment.startsWith(":")) return segment === given[at];
      found[segment.slice(1)] = decodeURIComponent(given[at]);
      return true;
    });
    if (fits) return { load, name, found };
  }
  return null;
}

// Loads the page at `path`. A script that did not come is not asked for again by the browser until the page is loaded anew.
function usePage(path) {
  const wanted = findPage(path);
  const [state, setState] = useState({ path: null, Page: null, error: null });
  useEffect(() => {
    if (!wanted) return undefined;
    let isGone = false;
    const put = (Page, error) => isGone || setState({ path, Page, error });
    wanted.load().then((script) => put(script[wanted.name], null), () => put(null, new ApiError("The broker does not send this page.")));
    return () => {
      isGone = true;
    };
  }, [path]);
  return { ...(state.path === path ? state : { Page: null, error: null }), found: wanted?.found };
}

// True if words that somebody wrote would be lost with the page.
const isWriting = () => document.querySelector("dialog[open]") || [...document.querySelectorAll("textarea")].some((each) => each.value);

// Counts seconds down while the broker is silent, and goes on with another one: the same page there. The broker that is
// back, and a person who stays, end it. It stands still while the page is hidden, offline, or has words that would be lost.
function Away() {
  const silent = useSilence();
  const [left, setLeft] = useState(AWAY_SECONDS);
  const [stays, setStays] = useState(false);
  const [node, address] = (silent && findOthers()[0]) || [];
  const counts = !!address && !stays;
  useEffect(() => {
    setLeft(AWAY_SECONDS);
    if (!counts) return undefined;
    const timer = setInterval(() => document.hidden || !navigator.onLine || isWriting() || setLeft((was) => was - 1), 1000);
    return () => clearInterval(timer);
  }, [counts]);
  useEffect(() => {
    if (!silent) setStays(false);
  }, [silent]);
  useEffect(() => {
    if (counts && left <= 0) location.replace(address);
  }, [counts, left]);
  return html`<div>${counts && html`<div class="lost"><span role="alert">This page goes on with broker ${node}</span> <span role="timer">in ${Math.max(left, 0)} s</span>
    <a class="button" href=${address}>Go now</a> <button onClick=${() => setStays(true)}>Stay</button></div>`}</div>`;
}

function Caller({ about, cluster }) {
  return html`
    ${about && html`<span title="the broker that this page asks">broker ${about.node_id}</span> · `}
    ${about?.read_only && html`<span class="state" title="tiered.console.read.only">read-only</span> `}
    ${about && html`<span title="your principal">${about.principal}</span> · `}<span title="id of the cluster">${cluster}</span>`;
}

function Frame() {
  const [place, setPlace] = useState(location.pathname + location.search);
  const cluster = useCluster();
  const about = useAbout(PULSE_SECONDS);
  const known = usePoll("/tiered/v1/cluster", BROKERS_SECONDS).value;
  useEffect(() => {
    if (known) rememberBrokers(known.brokers);
  }, [known]);
  useEffect(() => {
    const moved = () => setPlace(location.pathname + location.search);
    const clicked = (event) => {
      const link = event.target.closest?.("a[href]");
      const plain = !event.defaultPrevented && !event.button && !event.metaKey && !event.ctrlKey && !event.shiftKey;
      if (!link || !plain || link.target || link.origin !== location.origin || !link.pathname.startsWith(ROOT)) return;
      event.preventDefault();
      history.pushState(null, "", link.href);
      moved();
      scrollTo(0, 0);
      document.querySelector("main")?.focus();
    };
    addEventListener("popstate", moved);
    addEventListener("click", clicked);
    return () => {
      removeEventListener("popstate", moved);
      removeEventListener("click", clicked);
    };
  }, []);
  const path = place.split("?")[0];
  const section = path.split("/")[2] ?? "";
  const { Page, found, error } = usePage(path);
  useEffect(() => {
    for (const link of document.querySelectorAll("nav a")) {
      if (link.pathname === ROOT + section) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
  }, [section]);
  useEffect(() => {
    render(html`<${Caller} about=${about} cluster=${cluster.id} />`, document.getElementById("caller"));
  }, [about, cluster.id]);
  return html`
    ${cluster.error && !cluster.id && html`<${ErrorBox} error=${cluster.error} />`}
    ${Page ? html`<${Page} key=${path} ...${found} cluster=${cluster.id} />`
      : error ? html`<div><${ErrorBox} error=${error} /><button onClick=${() => location.reload()}>Try again</button></div>`
      : found ? html`<${Loading} state=${{ value: null }} />`
      : html`<h1>No such page</h1><p>The console has no page at <code>${path}</code>.</p>`}
    <${Away} />`;
}

render(html`<${Frame} />`, document.getElementById("main"));
