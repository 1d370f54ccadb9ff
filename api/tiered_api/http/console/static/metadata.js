// The metadata log entry by entry, and which broker was controller when. The page asks once: each look costs the bucket
// a list.
import { html, useState } from "./vendor/htm-preact-3.1.1.js";
import { usePoll } from "./api.js";
import { bytes, number, plural, time } from "./format.js";
import { Loading, Table, Title, useAddress } from "./parts.js";

const SHOWN = 50;
const FOLDED = 4;
const HEADS = ["name", "topic", "topic_id", "node_id", "user", "principal", "key", "token_id"];

// Returns a change in a few words: its kind, and what it is about.
export function changeWords(change) {
  const kind = change.kind.replaceAll("_", " ");
  if (change.entity) return `${kind}: ${change.key} of ${change.entity.map(([type, name]) => `${type} ${name ?? "(default)"}`).join(", ")}`;
  const about = HEADS.filter((name) => change[name] !== undefined && change[name] !== null).slice(0, 1).map((name) => (name === "node_id" ? `broker ${change[name]}` : String(change[name])));
  const partition = change.partition === undefined ? "" : `/${change.partition}`;
  return `${kind}${about.length ? `: ${about[0]}${partition}` : ""}`;
}

function Change({ change }) {
  const facts = Object.entries(change).filter(([name]) => name !== "kind");
  return html`<details class="change"><summary>${changeWords(change)}</summary>
    <dl class="facts">${facts.map(([name, value]) => html`<div><dt>${name}</dt><dd><code>${typeof value === "string" ? value : JSON.stringify(value)}</code></dd></div>`)}</dl></details>`;
}

function Changes({ entry }) {
  const left = entry.changes_left_out;
  return html`${entry.changes.length === 0 && html`<span class="dim">none</span>`}
    ${entry.changes.slice(0, FOLDED).map((change) => html`<${Change} change=${change} />`)}
    ${entry.changes.length > FOLDED && html`<details class="change"><summary>${plural(entry.changes.length - FOLDED, "change")} more</summary>
      ${entry.changes.slice(FOLDED).map((change) => html`<${Change} change=${change} />`)}</details>`}
    ${left > 0 && html`<p class="dim">and ${plural(left, "change")} more</p>`}`;
}

function Controllers({ round }) {
  const found = usePoll("/tiered/v1/metadata/controllers", 0, round);
  const columns = [
    ["node_id", "Controller", (each) => `broker ${each.node_id}`],
    ["controller_epoch", "Epoch", (each) => number(each.controller_epoch), true],
    ["from_ms", "From (UTC)", (each) => time(each.from_ms ?? -1)],
    ["to_ms", "To (UTC)", (each) => (each === found.value.controllers[0] ? "now" : time(each.to_ms ?? -1))],
    ["slot", "Slot", (each) => number(each.slot), true],
  ];
  return html`<h2>Controllers</h2><${Loading} state=${found} />
    ${found.value && html`<${Table} name="Controllers" rows=${found.value.controllers} columns=${columns} empty="No controller was elected in these slots." />
      ${found.value.since_slot > 0 && html`<p class="dim">Since slot ${number(found.value.since_slot)}.</p>`}`}`;
}

export function MetadataPage() {
  const [view, change] = useAddress({ to: "" });
  const [round, setRound] = useState(0);
  const log = usePoll(`/tiered/v1/metadata/log?limit=${SHOWN}${view.to && `&to=${encodeURIComponent(view.to)}`}`, 0, round);
  const found = log.value;
  const columns = [
    ["slot", "Slot", (each) => number(each.slot), true],
    ["written_ms", "Written (UTC)", (each) => time(each.written_ms ?? -1)],
    ["controller_epoch", "Epoch", (each) => number(each.controller_epoch), true],
    ["bytes", "Bytes", (each) => bytes(each.bytes), true],
    ["changes", "Changes", (each) => html`<${Changes} key=${each.slot} entry=${each} />`],
  ];
  return html`<${Title} words="Metadata">
      <button onClick=${() => { change({ to: "" }); setRound(round + 1); }}>Newest</button>
      <button disabled=${found?.next_to === null || !found} onClick=${() => change({ to: String(found.next_to) })}>Older</button><//>
    <${Loading} state=${log} />
    ${found && html`<dl class="figures">
        <div><dt>Controller</dt><dd>${found.controller < 0 ? "none" : `broker ${found.controller}`}</dd></div>
        <div><dt>Epoch</dt><dd>${number(found.controller_epoch)}</dd></div>
        <div><dt>Last slot</dt><dd>${number(found.slot)}</dd></div></dl>
      <${Controllers} round=${round} />
      <h2>Log</h2>
      <${Table} name="Metadata log" rows=${found.entries} columns=${columns} />`}`;
}
