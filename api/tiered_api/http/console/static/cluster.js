// The brokers of the cluster, and what is wrong with it.
import { html } from "./vendor/htm-preact-3.1.1.js";
import { usePoll } from "./api.js";
import { number, plural } from "./format.js";
import { ErrorBox, Loading, Table, Title } from "./parts.js";

const COLUMNS = [
  ["node_id", "Broker"],
  ["state", "State", (each) => html`<span class=${`state ${each.state}`}>${each.state}</span>`],
  ["address", "Address", (each) => html`<code>${each.address ?? "–"}</code>`],
  ["rack", "Rack", (each) => each.rack ?? "–"],
  ["leaders", "Leads", (each) => number(each.leaders), true],
  ["replicas", "Replicas", (each) => number(each.replicas), true],
];

function Verdict({ found }) {
  if (found.healthy && !found.partial) return html`<div class="verdict good"><strong>Healthy.</strong> Every partition has its leader and its replicas.</div>`;
  if (found.healthy) return html`<div class="verdict"><strong>Healthy, as far as you may see.</strong> ${found.hidden.join(" ")}</div>`;
  return html`<div class="verdict bad" role="alert"><strong>Not healthy.</strong> ${found.reasons.join(", ")}
    <ul>${found.broker_problems.map((sentence) => html`<li>${sentence}</li>`)}</ul></div>`;
}

function Partitions({ rows }) {
  if (!rows.length) return null;
  const columns = [
    ["topic", "Partition", (each) => html`<a href=${`/console/topics/${encodeURIComponent(each.topic)}`}>${each.topic}</a>/${each.partition}`],
    ["problems", "Problem", (each) => each.problems.join(", ")],
    ["leader", "Leader", null, true],
    ["isr", "In sync", (each) => each.isr.join(", ")],
    ["why", "Why"],
  ];
  return html`<h2>${plural(rows.length, "partition")} that ${rows.length === 1 ? "lacks" : "lack"} something</h2>
    <${Table} name="Unhealthy partitions" rows=${rows} columns=${columns} />`;
}

export function ClusterPage() {
  const health = usePoll("/tiered/v1/cluster");
  const found = health.value;
  return html`<${Title} words="Cluster" />
    <${Loading} state=${health} />
    ${found && html`
      <${Verdict} found=${found} />
      <dl class="figures">
        <div><dt>Brokers</dt><dd>${number(found.brokers.length)}</dd></div>
        <div><dt>Controller</dt><dd>${found.controller < 0 ? "none" : found.controller}</dd></div>
        <div><dt>Topics</dt><dd>${number(found.topics)}</dd></div>
        <div><dt>Partitions</dt><dd>${number(found.partition_count)}</dd></div>
      </dl>
      <h2>Brokers</h2>
      <${Table} name="Brokers" rows=${found.brokers} columns=${COLUMNS} />
      <${Partitions} rows=${found.partitions} />`}`;
}
