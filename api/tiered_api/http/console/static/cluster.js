// The brokers of the cluster, and what is wrong with it.
import { html, useEffect, useState } from "./vendor/htm-preact-3.1.1.js";
import { usePoll } from "./api.js";
import { Curve, WINDOW_MS, rateOver } from "./curve.js";
import { bytes, number, plural, span, time } from "./format.js";
import { Coded, Loading, Table, Title } from "./parts.js";

const KEPT = 150;
const IN = "kafka_server_brokertopicmetrics_bytesin_total";
const OUT = "kafka_server_brokertopicmetrics_bytesout_total";
const REQUESTS = "tiered_store_requests_total";
const MOVED = "tiered_store_bytes_total";
const WAITING = "tiered_upload_waiting_segments";
const LAG = "tiered_remote_copy_lag_seconds";
const FREE = "tiered_disk_free_bytes";

const COLUMNS = [
  ["node_id", "Broker"],
  ["state", "State", (each) => html`<span class=${`state ${each.state}`}>${each.state}</span>`],
  ["address", "Address", (each) => html`<code>${each.address ?? "–"}</code>`],
  ["rack", "Rack", (each) => each.rack ?? "–"],
  ["machine", "Machine"],
  ["leaders", "Leads", (each) => number(each.leaders), true],
  ["replicas", "Replicas", (each) => number(each.replicas), true],
  ["in", "Written", (each) => rate(each.in), true],
  ["out", "Read", (each) => rate(each.out), true],
  ["free", "Disk free", (each) => bytes(each.figures[FREE]), true],
  ["lag", "Waits for the bucket", (each) => waits(each), true],
];

// A machine is told apart from its broker only where one runs several processes.
const columnsOf = (brokers) =>
  COLUMNS.filter(([name]) => name !== "machine" || brokers.some((each) => each.machine !== each.node_id));

const rate = (value) => (value === undefined ? "–" : `${bytes(value)}/s`);

function waits({ figures }) {
  if (figures[WAITING] === undefined) return "–";
  return figures[WAITING] ? `${plural(figures[WAITING], "segment")}, ${span(figures[LAG] ?? 0)}` : "nothing";
}

// Returns the rates of the brokers, by broker, over the last looks: { node: { name: value per second } }.
export function ratesOf(looks) {
  const found = {};
  for (const { node_id: node } of looks.at(-1).brokers) {
    found[node] = {};
    for (const name of [IN, OUT]) {
      const counts = looks.map(({ at, brokers }) => [at, brokers.find((each) => each.node_id === node)?.figures[name]]);
      const known = counts.slice(counts.findLastIndex(([, count]) => count === undefined) + 1);
      const rate = rateOver(known);
      if (rate !== null) found[node][name] = rate;
    }
  }
  return found;
}

function useRates(found) {
  const [state, setState] = useState({ looks: [], rates: {}, points: [] });
  useEffect(() => {
    if (!found) return;
    setState(({ looks: were, points }) => {
      const now = { brokers: found.brokers, at: Date.now() };
      const looks = [...were.filter((each) => now.at - each.at <= WINDOW_MS), now];
      const rates = ratesOf(looks);
      if (looks.length < 2) return { looks, rates, points };
      const sum = (name) => Object.values(rates).reduce((total, each) => total + (each[name] ?? 0), 0);
      return { looks, rates, points: [...points, [now.at, sum(IN), sum(OUT)]].slice(-KEPT) };
    });
  }, [found]);
  return state;
}

const VERBS = { get: "reads", put: "small writes", upload: "segments", list: "lists", delete: "deletes" };

function Bucket({ brokers }) {
  const rows = Object.entries(VERBS).map(([verb, words]) => {
    const sum = (name) => brokers.reduce((total, each) => total + (each.figures[name]?.[verb] ?? 0), 0);
    return { verb: words, requests: sum(REQUESTS), bytes: sum(MOVED) };
  });
  const columns = [
    ["verb", "Requests"],
    ["requests", "Since the brokers started", (each) => number(each.requests), true],
    ["bytes", "Bytes", (each) => bytes(each.bytes), true],
  ];
  return html`<h2>Bucket</h2><${Table} name="Requests to the bucket" rows=${rows} columns=${columns} />`;
}

// What mends each reason of `tiered cluster health`, in the order in which an operator acts.
const MENDS = {
  "nodes down": "Start the brokers that are not live.",
  "no controller": "Start a broker that reaches the bucket: it becomes controller.",
  "leaderless partitions": "Start the brokers that the column Why names.",
  "under-min-ISR partitions": "Mend what the column Why says of these partitions. Writes with acks=all are refused meanwhile.",
  "under-replicated partitions": "Wait if a broker started a moment ago: it copies. Else mend what the column Why says.",
  "possible losses": "See `tiered cluster losses`, which also acknowledges them.",
  bucket: "Look at the network, the credentials and the rights of the store. Segments wait on the disks meanwhile, and go up by themselves.",
  "broker problems": "Mend what the sentences name. The log of that broker has more.",
};
const sentence = (text) => `${text[0].toUpperCase()}${text.slice(1)}.`;

function Verdict({ found }) {
  if (found.healthy && !found.partial) return html`<div class="verdict good"><strong>Healthy.</strong> Every partition has its leader and its replicas.</div>`;
  if (found.healthy) return html`<div class="verdict"><strong>Healthy, as far as you may see.</strong> ${found.hidden.map((each) => `You see ${each}.`).join(" ")}</div>`;
  return html`<div class="verdict bad" role="alert"><strong>Not healthy.</strong> ${sentence(found.reasons.join(", "))}
    <ul>${found.broker_problems.map((each) => html`<li><${Coded} text=${each} /></li>`)}</ul>
    <strong>What to do</strong><ul>${found.reasons.filter((each) => MENDS[each]).map((each) => html`<li><${Coded} text=${MENDS[each]} /></li>`)}</ul></div>`;
}

function Partitions({ rows }) {
  if (!rows.length) return null;
  const columns = [
    ["topic", "Partition", (each) => html`<a href=${`/console/topics/${encodeURIComponent(each.topic)}`}>${each.topic}</a>/${each.partition}`],
    ["problems", "Problem", (each) => each.problems.join(", ")],
    ["leader", "Leader", null, true],
    ["isr", "In sync", (each) => each.isr.join(", ")],
    ["since_ms", "Since", (each) => (each.since_ms === null ? "–" : html`${time(each.since_ms)} UTC`)],
    ["why", "Why"],
  ];
  return html`<h2>${plural(rows.length, "partition")} that ${rows.length === 1 ? "lacks" : "lack"} something</h2>
    <${Table} name="Unhealthy partitions" rows=${rows} columns=${columns} />`;
}

export function ClusterPage() {
  const health = usePoll("/tiered/v1/cluster");
  const found = health.value;
  const { rates, points } = useRates(found);
  const brokers = (found?.brokers ?? []).map((each) => ({ ...each, in: rates[each.node_id]?.[IN], out: rates[each.node_id]?.[OUT] }));
  const hasFigures = brokers.some((each) => IN in each.figures);
  return html`<${Title} words="Cluster" />
    <${Loading} state=${health} />
    ${found && html`
      <${Verdict} found=${found} />
      <dl class="figures">
        <div><dt>Brokers</dt><dd>${number(found.brokers.length)}</dd></div>
        <div><dt>Controller</dt><dd>${found.controller < 0 ? "none" : found.controller}</dd></div>
        <div><dt>Topics, internal ones too</dt><dd>${number(found.topics)}</dd></div>
        <div><dt>Partitions</dt><dd>${number(found.partition_count)}</dd></div>
      </dl>
      ${hasFigures && html`<h2>Bytes written and read</h2>
        <${Curve} format=${rate} lines=${[["written", points.map(([ms, value]) => [ms, value])], ["read", points.map(([ms, , value]) => [ms, value])]]} />`}
      <h2>Brokers</h2>
      <${Table} name="Brokers" rows=${brokers} columns=${columnsOf(brokers)} />
      <${Partitions} rows=${found.partitions} />
      ${hasFigures && html`<${Bucket} brokers=${brokers} />`}`}`;
}
