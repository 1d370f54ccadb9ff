// The Delta tables of topics in the warehouse: how new they are, how far behind, what did not fit, and their versions.
import { html } from "./vendor/htm-preact-3.1.1.js";
import { useAbout, usePoll } from "./api.js";
import { quoted } from "./copy.js";
import { bytes, number, plural, span, time } from "./format.js";
import { ErrorBox, Loading, Table, Title, useAddress } from "./parts.js";
import { Why } from "./why.js";

// The broker keeps what it has read for some seconds: each look starts a process there.
const SECONDS = 60;
const COUNTS = ["20", "50", "100"];

const topicPath = (topic) => `/console/topics/${encodeURIComponent(topic)}`;
const tablePath = (table) => `/console/tables/${encodeURIComponent(table)}`;
const ago = (ms) => (ms === null || ms === undefined ? "–" : html`<span title=${`${time(ms)} UTC`}>${span(Math.max(0, (Date.now() - ms) / 1000))} ago</span>`);

function Verified({ found, version }) {
  if (!found) return html`<span class="dim">never</span>`;
  const words = found.ok ? "sound" : plural(found.faults, "fault");
  const older = version > found.table_version ? `, ${plural(version - found.table_version, "version")} ago` : "";
  return html`<span class=${`state ${found.ok ? "live" : "away"}`} title=${`version ${found.table_version}, ${time(found.at_ms)} UTC`}>${words}</span>${older}`;
}

export function NoWarehouse() {
  return html`<p>A warehouse is the place where Delta tables are kept. None is set, so this page knows of no tables.</p>
    <p>Set <code>tiered.console.warehouse</code> of the brokers to the place that <code>tiered load --warehouse</code> writes to, for example <code>file:///srv/tables</code> or <code>s3://bucket/tables</code>, and start them again.</p>`;
}

const ROW = [
  ["table", "Table", (each) => html`<a href=${tablePath(each.table)}>${each.table}</a>`],
  ["kind", "Kind", (each) => (each.problem ? html`<span class="state away" title=${each.problem}>unreadable</span>` : each.kind)],
  ["topic", "Topic", (each) => (each.is_topic_there ? html`<a href=${topicPath(each.topic)}>${each.topic}</a>` : html`${each.topic || "–"}${each.topic && html` <span class="dim">(gone)</span>`}`)],
  ["rows", "Rows", (each) => number(each.rows), true],
  ["bytes", "Bytes", (each) => bytes(each.bytes), true],
  ["newest_ms", "Newest record", (each) => ago(each.newest_ms), true],
  ["committed_ms", "Last commit", (each) => ago(each.committed_ms), true],
  ["lag", "Records behind", (each) => number(each.lag), true],
  ["dead_letters", "Dead letters", (each) => number(each.dead_letters), true],
  ["version", "Version", (each) => number(each.version), true],
  ["verified", "Last verify", (each) => html`<${Verified} found=${each.verified} version=${each.version} />`],
];

export function TablesPage() {
  const [view, change] = useAddress({ search: "" });
  const found = usePoll("/tiered/v1/tables", SECONDS);
  const tables = found.value?.tables ?? [];
  const rows = tables.filter((each) => each.table.includes(view.search));
  const unread = rows.filter((each) => each.problem);
  return html`<${Title} words="Tables"><span class="dim">${found.value?.is_set && plural(rows.length, "table")}</span><//>
    <${Loading} state=${found} />
    ${found.value && !found.value.is_set && html`<${NoWarehouse} />`}
    ${found.value?.is_set && html`
      ${found.value.warehouse && html`<p class="dim">In <code>${found.value.warehouse}</code>, read ${ago(found.value.read_ms)}.</p>`}
      ${found.value.problem && html`<${ErrorBox} error=${{ message: found.value.problem }} />`}
      ${found.value.partial && html`<p class="dim">Tables of topics that you may not read are left out.</p>`}
      <div class="tools"><label>Search <input type="search" value=${view.search} onInput=${(event) => change({ search: event.target.value })} /></label></div>
      ${!(found.value.problem && !tables.length) && html`<${Table} name="Tables" rows=${rows} columns=${ROW} empty=${view.search ? "No table has this in its name." : "The warehouse has no table that you may see."} />`}
      ${unread.map((each) => html`<p key=${each.table}><strong>${each.table}</strong> is not shown: ${each.problem}.</p>`)}`}`;
}

const PARTITION = [
  ["partition", "Partition", null, true],
  ["next_offset", "Loaded up to", (each) => number(each.next_offset), true],
  ["log_end_offset", "End of the topic", (each) => number(each.log_end_offset), true],
  ["lag", "Behind", (each) => number(each.lag), true],
];

const VERSION = [
  ["version", "Version", (each) => number(each.version), true],
  ["time_ms", "Time (UTC)", (each) => time(each.time_ms ?? -1)],
  ["operation", "Operation"],
  ["rows", "Rows", (each) => number(each.rows), true],
  ["files_added", "Files added", (each) => number(each.files_added), true],
  ["files_removed", "Files removed", (each) => number(each.files_removed), true],
];

function Letters({ found, messages }) {
  const record = (each) => `partition ${number(each.partition)}, offset ${number(each.offset)}`;
  const columns = [
    ["why", "Reason"],
    ["count", "Dead letters", (each) => number(each.count), true],
    ["offset", "For example", (each) => (found.is_topic_there && messages ? html`<a href=${`${topicPath(found.topic)}/messages?partition=${each.partition}&from=offset&at=${each.offset}`}>${record(each)}</a>` : record(each)), true],
  ];
  if (!found.reasons.length && !found.reasons_problem) return null;
  return html`<h2>Dead letters</h2>
    ${found.reasons_problem && html`<${ErrorBox} error=${{ message: `The reasons are not known: ${found.reasons_problem}` }} />`}
    ${found.reasons.length > 0 && html`<p class="dim">The reasons of the newest ${plural(found.reasons_of, "dead letter")}.</p>
      <${Table} name="Reasons of dead letters" rows=${found.reasons} columns=${columns} />`}`;
}

export function TablePage({ table }) {
  const [view, change] = useAddress({ versions: COUNTS[0] });
  const about = useAbout();
  const state = usePoll(`/tiered/v1/tables/${encodeURIComponent(table)}?versions=${encodeURIComponent(view.versions)}`, SECONDS);
  const found = state.value;
  const place = found?.warehouse ?? "WAREHOUSE";
  const commands = found?.topic ? [`tiered sql ${quoted(`SELECT * FROM \`${table}\` LIMIT 10`)} --warehouse ${quoted(place)}`, `tiered verify --store STORE --topic ${quoted(found.topic)} --warehouse ${quoted(place)}`] : [];
  return html`<${Title} kind="Table" words=${table}><span class="dim">${found && (found.problem ? "" : `${found.kind} table`)}</span><//>
    <${Loading} state=${state} />
    ${found?.problem && html`<${ErrorBox} error=${{ message: `The table cannot be shown: ${found.problem}` }} />`}
    ${found && html`<${Why} path=${`/tiered/v1/tables/${encodeURIComponent(table)}`} what="this table" />`}
    ${found && !found.problem && html`<dl class="figures">
        <div><dt>Rows</dt><dd>${number(found.rows)}</dd></div>
        <div><dt>Newest record</dt><dd>${ago(found.newest_ms)}</dd></div>
        <div><dt>Last commit</dt><dd>${ago(found.committed_ms)}</dd></div>
        <div><dt>Records behind</dt><dd>${number(found.lag)}</dd></div>
        <div><dt>Dead letters</dt><dd>${number(found.dead_letters)}</dd></div>
        <div><dt>Files</dt><dd>${number(found.files)}, ${bytes(found.bytes)}</dd></div></dl>
      <p>${found.topic ? html`Topic ${found.is_topic_there ? html`<a href=${topicPath(found.topic)}>${found.topic}</a>` : html`<code>${found.topic}</code> <span class="dim">(gone, or made anew)</span>`}.` : "It holds no topic."} Last verify: <${Verified} found=${found.verified} version=${found.version} />.</p>
      ${found.partitions.length > 0 && html`<h2>Partitions</h2><${Table} name="Partitions" rows=${found.partitions} columns=${PARTITION} />`}
      <${Letters} found=${found} messages=${about?.messages} />
      <h2>Versions</h2>
      <div class="tools"><label>Newest <select onChange=${(event) => change({ versions: event.target.value })}>
        ${COUNTS.map((each) => html`<option value=${each} selected=${each === view.versions}>${each}</option>`)}</select></label></div>
      <${Table} name="Versions" rows=${found.versions} columns=${VERSION} empty="The log has no commit any more." />
      <h2>Columns</h2>
      <${Table} name="Columns" rows=${found.columns} columns=${[["name", "Column", (each) => html`<code>${each.name}</code>`], ["type", "Type", (each) => html`<code>${each.type}</code>`]]} />
      ${commands.length > 0 && html`<details><summary>The same by a command</summary>${commands.map((each) => html`<pre>${each}</pre>`)}</details>`}`}`;
}
