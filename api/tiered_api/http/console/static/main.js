// The console: addresses, the frame of all pages, and the page of an address.
import { html, render, useEffect, useState } from "./vendor/htm-preact-3.1.1.js";
import { rememberBrokers, useAbout, useCluster, usePoll } from "./api.js";
import { AccessPage } from "./access.js";
import { ClusterPage } from "./cluster.js";
import { GroupPage, GroupsPage } from "./groups.js";
import { MessagesPage } from "./messages.js";
import { MetadataPage } from "./metadata.js";
import { AuditPage, MovesPage, SettingsPage } from "./operations.js";
import { ErrorBox } from "./parts.js";
import { TablePage, TablesPage } from "./tables.js";
import { TopicPage } from "./topic.js";
import { TopicsPage } from "./topics.js";
import { TransactionsPage } from "./transactions.js";

const ROOT = "/console/";
const BROKERS_SECONDS = 30;

// Each pattern with the page that it shows. A segment ":name" becomes the argument `name`.
const PAGES = [
  ["", ClusterPage],
  ["topics", TopicsPage],
  ["topics/:topic", TopicPage],
  ["topics/:topic/messages", MessagesPage],
  ["groups", GroupsPage],
  ["groups/:group", GroupPage],
  ["tables", TablesPage],
  ["tables/:table", TablePage],
  ["transactions", TransactionsPage],
  ["access", AccessPage],
  ["settings", SettingsPage],
  ["metadata", MetadataPage],
  ["moves", MovesPage],
  ["audit", AuditPage],
];

const MENU = [
  ["", "Cluster"],
  ["topics", "Topics"],
  ["groups", "Groups"],
  ["tables", "Tables"],
  ["transactions", "Transactions"],
  ["access", "Access"],
  ["settings", "Settings"],
  ["metadata", "Metadata"],
  ["moves", "Moves"],
  ["audit", "Audit"],
];

export function findPage(path) {
  const given = path.replace(/^\/console\/?/, "").split("/").filter(Boolean);
  for (const [pattern, page] of PAGES) {
    const wanted = pattern.split("/").filter(Boolean);
    if (wanted.length !== given.length) continue;
    const found = {};
    const fits = wanted.every((segment, at) => {
      if (!segment.startsWith(":")) return segment === given[at];
      found[segment.slice(1)] = decodeURIComponent(given[at]);
      return true;
    });
    if (fits) return [page, found];
  }
  return [null, {}];
}

function Frame() {
  const [place, setPlace] = useState(location.pathname + location.search);
  const cluster = useCluster();
  const about = useAbout();
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
  const [Page, found] = findPage(path);
  const section = path.split("/")[2] ?? "";
  return html`
    <a class="skip" href="#main">Skip to the page</a>
    <header>
      <a class="brand" href=${ROOT}><img src="/console/static/icon.svg" alt="" width="20" height="20" />tiered</a>
      <nav aria-label="Pages">
        ${MENU.map(([name, words]) => html`
          <a href=${ROOT + name} aria-current=${section === name ? "page" : undefined}>${words}</a>`)}
      </nav>
      <span class="cluster-id">
        ${about?.read_only && html`<span class="state" title="tiered.console.read.only">read-only</span> `}
        ${about && html`<span title="your principal">${about.principal}</span> · `}<span title="id of the cluster">${cluster.id}</span></span>
    </header>
    <main id="main" tabindex="-1">
      ${cluster.error && !cluster.id && html`<${ErrorBox} error=${cluster.error} />`}
      ${Page ? html`<${Page} key=${path} ...${found} cluster=${cluster.id} />`
        : html`<h1>No such page</h1><p>The console has no page at <code>${path}</code>.</p>`}
    </main>`;
}

render(html`<${Frame} />`, document.getElementById("app"));
