// All topics that the caller may describe.
import { html } from "./vendor/htm-preact-3.1.1.js";
import { usePoll } from "./api.js";
import { CreateTopic } from "./topic_acts.js";
import { number, plural } from "./format.js";
import { Loading, Table, Title, useAddress } from "./parts.js";

const COLUMNS = [
  ["name", "Topic", (each) => html`<a href=${`/console/topics/${encodeURIComponent(each.name)}`}>${each.name}</a>`],
  ["partitions", "Partitions", (each) => number(each.partitions), true],
  ["replication_factor", "Replicas", null, true],
  ["under_replicated", "Lack replicas", (each) => (each.under_replicated ? html`<span class="state fenced">${each.under_replicated}</span>` : 0), true],
  ["leaderless", "Lack a leader", (each) => (each.leaderless ? html`<span class="state away">${each.leaderless}</span>` : 0), true],
];

export function TopicsPage({ cluster }) {
  const topics = usePoll("/tiered/v1/topics", 10);
  const [view, change] = useAddress({ search: "", internal: "" });
  const wanted = view.search.toLowerCase();
  const rows = (topics.value?.topics ?? []).filter((each) => (view.internal || !each.is_internal) && each.name.toLowerCase().includes(wanted));
  const hidden = (topics.value?.topics ?? []).filter((each) => each.is_internal).length;
  return html`<${Title} words="Topics"><span class="dim">${topics.value && plural(rows.length, "topic")}${topics.value && !view.internal && hidden > 0 && `, and ${plural(hidden, "internal one")}`}</span>${cluster && html`<${CreateTopic} cluster=${cluster} />`}<//>
    <div class="tools">
      <label>Search <input type="search" value=${view.search} onInput=${(event) => change({ search: event.target.value })} /></label>
      <label><input type="checkbox" checked=${!!view.internal} onChange=${(event) => change({ internal: event.target.checked ? "1" : "" })} /> internal topics too</label>
    </div>
    <${Loading} state=${topics} />
    ${topics.value && html`<${Table} name="Topics" rows=${rows} columns=${COLUMNS} empty=${view.search ? "No topic has this in its name." : "There are no topics that you may see."} />`}`;
}
