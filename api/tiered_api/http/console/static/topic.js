// One topic: the tiers of its partitions, its settings, its groups.
import { html, useEffect, useState } from "./vendor/htm-preact-3.1.1.js";
import { POLL_SECONDS, useAbout, usePoll } from "./api.js";
import { SetTopicConfig, TopicActs } from "./topic_acts.js";
import { WINDOW_MS, rateOver } from "./curve.js";
import { bytes, groupState, number, plural } from "./format.js";
import { Loading, SettingName, Table, Title, TopicTabs, useAddress } from "./parts.js";
import { SegmentPanel } from "./segments.js";
import { Legend, TierBar, rangeOf } from "./tiers.js";
import { Why } from "./why.js";

const SHOWN_MAX = 64;
const TABLE_SECONDS = 60;

function sum(rows, name) {
  return rows.reduce((total, each) => total + Math.max(0, each[name] ?? 0), 0);
}

// Returns the records a second of each partition over the last looks: { partition: rate }.
function useRates(storage) {
  const [looks, setLooks] = useState([]);
  useEffect(() => {
    if (!storage) return;
    const ends = Object.fromEntries(storage.partitions.map((each) => [each.partition, each.high_watermark]));
    setLooks((were) => [...were.filter(([at]) => Date.now() - at <= WINDOW_MS), [Date.now(), ends]]);
  }, [storage]);
  const known = (partition) => looks.map(([at, ends]) => [at, ends[partition]]).filter(([, end]) => end !== undefined && end !== null);
  const rates = Object.keys(looks.at(-1)?.[1] ?? {}).map((partition) => [partition, rateOver(known(partition))]);
  return Object.fromEntries(rates.filter(([, rate]) => rate !== null));
}

const rateWords = (rate) => `${plural(rate < 10 ? Math.round(rate * 10) / 10 : Math.round(rate), "record")}/s`;

// `view.pick` is "PARTITION:OFFSET": the segment that is shown.
function Tiers({ topic, storage, rates, groups, table, view, change, messages }) {
  const [all, setAll] = useState(false);
  const [picked, setPicked] = useState(null);
  const rows = storage.partitions;
  const positions = (partition) => groups.map((each) => [each.group, each.offsets[partition]]).filter(([, offset]) => offset !== undefined);
  const [partition, offset] = view.pick ? view.pick.split(":").map(Number) : [-1, 0];
  const pick = (number) => (at) => {
    // A segment that is picked once more stays marked: it is not found anew.
    if (at === null || number !== partition) setPicked(null);
    change({ pick: at === null ? "" : `${number}:${at}` });
    if (at === null) document.getElementById(`segments-${number}`)?.focus();
  };
  const closes = (number) => (event) => event.key === "Escape" && number === partition && pick(number)(null);
  const range = view.axis === "time" ? rangeOf(rows) : null;
  return html`<dl class="figures">
      <div><dt>Partitions</dt><dd>${number(rows.length)}</dd></div>
      <div><dt>On the disks of the leaders</dt><dd>${bytes(sum(rows, "local_bytes"))}</dd></div>
      <div><dt>In the bucket</dt><dd>${bytes(sum(rows, "cold_bytes"))}</dd></div>
      ${Object.keys(rates).length > 0 && html`<div><dt>Written now</dt><dd>${rateWords(Object.values(rates).reduce((total, each) => total + each, 0))}</dd></div>`}
    </dl>
    <div class="tools"><label>Bars over <select value=${view.axis} onChange=${(event) => change({ axis: event.target.value })}>
      <option value="" selected=${!view.axis}>offsets</option><option value="time" selected=${view.axis === "time"}>time (UTC)</option></select></label>
      <${Legend} table=${table?.table} cleaned=${rows.some((each) => each.cleaned_to_offset)} /></div>
    ${table?.problem && html`<p class="dim">What is loaded into its Delta table is not known: ${table.problem}.</p>`}
    ${(all ? rows : rows.filter((each, at) => at < SHOWN_MAX || each.partition === partition)).map((each) => html`<section class="partition" key=${each.partition} onKeyDown=${closes(each.partition)}>
      <h3><a href=${`/console/topics/${encodeURIComponent(topic)}/messages?partition=${each.partition}`}>Partition ${each.partition}</a>
        <span class="dim"> leader ${each.leader < 0 ? "none" : each.leader}, in sync ${each.isr.join(", ")}${each.isr.length < each.replicas.length ? html` of <span class="state fenced">${each.replicas.join(", ")}</span>` : ""}${rates[each.partition] === undefined ? "" : `, ${rateWords(rates[each.partition])}`}</span>
        <button class="sort" id=${`segments-${each.partition}`} aria-expanded=${each.partition === partition} onClick=${() => pick(each.partition)(each.partition === partition ? null : each.log_start_offset ?? 0)}>Segments</button></h3>
      <${TierBar} partition=${each} positions=${positions(each.partition)} loaded=${table?.offsets[each.partition]} byTime=${view.axis === "time"} range=${range} onPick=${pick(each.partition)} picked=${each.partition === partition ? picked : null} />
      <${Why} path=${`/tiered/v1/topics/${encodeURIComponent(topic)}/partitions/${each.partition}`} what=${`partition ${each.partition}`} />
      ${each.partition === partition && html`<${SegmentPanel} topic=${topic} partition=${partition} offset=${offset} messages=${messages} onPick=${pick(partition)} onFound=${setPicked} />`}</section>`)}
    ${!all && rows.length > SHOWN_MAX && html`<button onClick=${() => setAll(true)}>Show all ${number(rows.length)} partitions</button>`}`;
}

function Settings({ cluster, topic }) {
  const configs = usePoll(cluster && `/v3/clusters/${cluster}/topics/${encodeURIComponent(topic)}/configs`, 5);
  const [view, change] = useAddress({ setting: "" });
  const columns = [
    ["name", "Setting", (each) => html`<${SettingName} config=${each} />`],
    ["value", "Value", (each) => html`<code>${each.value ?? "hidden"}</code>`],
    ["source", "From", (each) => each.source.toLowerCase().replaceAll("_", " ")],
    ["act", "", (each) => !each.is_read_only && html`<${SetTopicConfig} cluster=${cluster} topic=${topic} config=${each} />`],
  ];
  const rows = (configs.value?.data ?? []).filter((each) => each.name.includes(view.setting));
  return html`<${Loading} state=${configs} />
    <div class="tools"><label>Search <input type="search" value=${view.setting} onInput=${(event) => change({ setting: event.target.value })} /></label></div>
    ${configs.value && html`<${Table} name="Settings" rows=${rows} columns=${columns} />`}`;
}

function Groups({ groups }) {
  const columns = [
    ["group", "Group", (each) => html`<a href=${`/console/groups/${encodeURIComponent(each.group)}`}>${each.group}</a>`],
    ["state", "State", (each) => groupState(each.state)],
    ["lag", "Behind", (each) => number(each.lag), true],
  ];
  return html`<${Table} name="Groups" rows=${groups} columns=${columns} empty="No group that you may see has committed an offset of this topic." />`;
}

export function TopicPage({ topic, cluster }) {
  const [view, change] = useAddress({ tab: "", axis: "", pick: "" });
  const about = useAbout();
  const path = `/tiered/v1/topics/${encodeURIComponent(topic)}`;
  const [gone, setGone] = useState(false);
  const storage = usePoll(`${path}/storage${view.axis === "time" ? "?marks=32" : ""}`, gone ? null : POLL_SECONDS);
  const rates = useRates(storage.value);
  const groups = usePoll(`${path}/groups`, gone ? null : 4);
  const table = usePoll(about?.has_warehouse ? `${path}/table` : null, TABLE_SECONDS);
  const found = groups.value?.groups ?? [];
  return html`<${Title} kind="Topic" words=${topic}>
      ${about?.has_authorizer && html`<a class="button" href=${`/console/access?covers=${encodeURIComponent(topic)}&kind=TOPIC`}>Access</a>`}<//>
    <${TopicTabs} topic=${topic} shown=${view.tab} messages=${about?.messages} choose=${(tab) => change({ tab })} />
    <${Loading} state=${storage} />
    ${storage.value && html`<${TopicActs} topic=${topic} cluster=${cluster} storage=${storage.value} setGone=${setGone} />`}
    ${view.tab === "" && storage.value && html`<${Tiers} topic=${topic} storage=${storage.value} rates=${rates} groups=${found} table=${table.value} view=${view} change=${change} messages=${about?.messages} />`}
    ${view.tab === "groups" && (groups.value ? html`<${Groups} groups=${found} />` : html`<${Loading} state=${groups} />`)}
    ${view.tab === "settings" && html`<${Why} path=${path} what="this topic" /><${Settings} cluster=${cluster} topic=${topic} />`}`;
}
