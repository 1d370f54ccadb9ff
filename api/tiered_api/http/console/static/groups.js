// Consumer groups: who reads, how far behind, and how that changes while the page is open.
import { html, useEffect, useState } from "./vendor/htm-preact-3.1.1.js";
import { usePoll } from "./api.js";
import { number, plural } from "./format.js";
import { Curve } from "./curve.js";
import { Loading, Table, Title, useAddress } from "./parts.js";

const KEPT = 150;

export function GroupsPage({ cluster }) {
  const groups = usePoll(cluster && `/v3/clusters/${cluster}/consumer-groups`, 5);
  const [view, change] = useAddress({ search: "" });
  const wanted = view.search.toLowerCase();
  const rows = (groups.value?.data ?? []).filter((each) => each.consumer_group_id.toLowerCase().includes(wanted));
  const columns = [
    ["consumer_group_id", "Group", (each) => html`<a href=${`/console/groups/${encodeURIComponent(each.consumer_group_id)}`}>${each.consumer_group_id}</a>`],
    ["state", "State", (each) => each.state.toLowerCase().replaceAll("_", " ")],
    ["partition_assignor", "Assignor"],
  ];
  return html`<${Title} words="Groups"><span class="dim">${groups.value && plural(rows.length, "group")}</span><//>
    <div class="tools"><label>Search <input type="search" value=${view.search} onInput=${(event) => change({ search: event.target.value })} /></label></div>
    <${Loading} state=${groups} />
    ${groups.value && html`<${Table} name="Groups" rows=${rows} columns=${columns} empty="There are no groups that you may see." />`}`;
}

// The sum of all lags while the page is open, as [ms, records].
function useTrend(lags) {
  const [points, setPoints] = useState([]);
  useEffect(() => {
    if (!lags) return;
    const total = lags.reduce((sum, each) => sum + Math.max(0, each.lag), 0);
    setPoints((were) => [...were, [Date.now(), total]].slice(-KEPT));
  }, [lags]);
  return points;
}

function Trend({ points }) {
  if (points.length < 2) return null;
  const change = points.at(-1)[1] - points[0][1];
  const seconds = Math.round((points.at(-1)[0] - points[0][0]) / 1000);
  const words = `${plural(Math.abs(change), "record")} ${change > 0 ? "more" : "fewer"} behind than ${seconds} s ago.`;
  return html`<p class="dim">${change ? words : "The lag does not change."}</p>`;
}

export function GroupPage({ group, cluster }) {
  const path = cluster && `/v3/clusters/${cluster}/consumer-groups/${encodeURIComponent(group)}`;
  const about = usePoll(path, 5);
  const lags = usePoll(path && `${path}/lags`);
  const members = usePoll(path && `${path}/consumers`, 5);
  const points = useTrend(lags.value?.data);
  const rows = lags.value?.data ?? [];
  const total = rows.reduce((sum, each) => sum + Math.max(0, each.lag), 0);
  const lagColumns = [
    ["topic_name", "Topic", (each) => html`<a href=${`/console/topics/${encodeURIComponent(each.topic_name)}`}>${each.topic_name}</a>`],
    ["partition_id", "Partition", null, true],
    ["current_offset", "Committed", (each) => number(each.current_offset), true],
    ["log_end_offset", "End", (each) => number(each.log_end_offset), true],
    ["lag", "Behind", (each) => number(each.lag), true],
    ["client_id", "Read by", (each) => each.client_id || html`<span class="dim">nobody</span>`],
  ];
  const memberColumns = [
    ["consumer_id", "Member", (each) => html`<code>${each.consumer_id}</code>`],
    ["client_id", "Client"],
    ["instance_id", "Static id", (each) => each.instance_id ?? "–"],
  ];
  return html`<${Title} words=${group} />
    <${Loading} state=${about} />
    ${about.value && html`<dl class="figures">
      <div><dt>State</dt><dd>${about.value.state.toLowerCase().replaceAll("_", " ")}</dd></div>
      <div><dt>Members</dt><dd>${number(members.value?.data.length)}</dd></div>
      <div><dt>Behind</dt><dd>${lags.value ? number(total) : "–"}</dd></div></dl>
      <h2>Lag</h2>
      <${Curve} lines=${[["behind", points]]} format=${number} />
      <${Trend} points=${points} />
      ${lags.value ? html`<${Table} name="Lag by partition" rows=${rows} columns=${lagColumns} empty="The group has committed no offset." />` : html`<${Loading} state=${lags} />`}
      <h2>Members</h2>
      ${members.value && html`<${Table} name="Members" rows=${members.value.data} columns=${memberColumns} empty="Nobody reads in this group now." />`}`}`;
}
