// The metadata log entry by entry, and which broker was controller when. The page asks once: each look costs the bucket
// a list.
import { html, useState } from "./vendor/htm-preact-3.1.1.js";
import { usePoll } from "./api.js";
import { bytes, number, plural, time } from "./format.js";
import { Loading, Table, Title, useAddress } from "./parts.js";

const SHOWN = 50;
const FOLDED = 4;
const HEADS = ["name", "topic", "topic_id", "node_id", "user", "principal", "key", "token_id"];

const SLOT = "The metadata log is a row of small objects in the bucket, one entry each: a slot is the number of one";
const EPOCH = "Controllers are counted: each one that is elected has the next number";
const SECONDS_2001 = 1e12;

// Returns the name of a topic by its id, the id itself where it is not known.
const nameOf = (id, names) => names.get(id) ?? id;

// Returns a change in a few words: its kind, and what it is about. `names` has the topics by their ids.
export function changeWords(change, names = new Map()) {
  if (change.kind === "stored_ends_noted" && change.ends?.length) {
    const [[id, partition, end]] = change.ends;
    const place = `${nameOf(id, names)}/${partition}`;
    const words = end < 0 ? `${place} may have records on disks alone` : end === 0 ? `${place} has no record yet` : `all records of ${place} are in the bucket, below ${number(end)}`;
    return change.ends.length > 1 ? `${words}; and ${plural(change.ends.length - 1, "other partition")}` : words;
  }
  const kind = change.kind.replaceAll("_", " ");
  if (change.entity) return `${kind}: ${change.key} of ${change.entity.map(([type, name]) => `${type} ${name ?? "(default)"}`).join(", ")}`;
  const about = HEADS.filter((name) => change[name] !== undefined && change[name] !== null).slice(0, 1).map((name) => (name === "node_id" ? `broker ${change[name]}` : nameOf(String(change[name]), names)));
  const partition = change.partition === undefined ? "" : `/${change.partition}`;
  return `${kind}${about.length ? `: ${about[0]}${partition}` : ""}`;
}

// A value of a change: a time as a person reads it, a topic by its name beside its id.
function factText(name, value, names) {
  if (name.endsWith("_ms") && value > SECONDS_2001) return `${time(value)} UTC`;
  if (typeof value === "string") return names.has(value) ? `${names.get(value)} (${value})` : value;
  return JSON.stringify(value, (_, each) => (typeof each === "string" && names.has(each) ? `${names.get(each)} (${each})` : each));
}

function Change({ change, names }) {
  const facts = Object.entries(change).filter(([name]) => name !== "kind");
  return html`<details class="change"><summary>${changeWords(change, names)}</summary>
    <dl class="facts">${facts.map(([name, value]) => html`<div><dt>${name}</dt><dd><code title=${typeof value === "number" ? String(value) : null}>${factText(name, value, names)}</code></dd></div>`)}</dl></details>`;
}

function Changes({ entry, names }) {
  const left = entry.changes_left_out;
  return html`${entry.changes.length === 0 && html`<span class="dim">none</span>`}
    ${entry.changes.slice(0, FOLDED).map((change) => html`<${Change} change=${change} names=${names} />`)}
    ${entry.changes.length > FOLDED && html`<details class="change"><summary>${plural(entry.changes.length - FOLDED, "change")} more</summary>
      ${entry.changes.slice(FOLDED).map((change) => html`<${Change} change=${change} names=${names} />`)}</details>`}
    ${left > 0 && html`<p class="dim">and ${plural(left, "change")} more</p>`}`;
}

function Controllers({ round }) {
  const found = usePoll("/tiered/v1/metadata/controllers", 0, round);
  const columns = [
    ["node_id", "Controller", (each) => `broker ${each.node_id}`],
    ["controller_epoch", "Epoch", (each) => number(each.controller_epoch), true, EPOCH],
    ["from_ms", "From (UTC)", (each) => time(each.from_ms ?? -1)],
    ["to_ms", "To (UTC)", (each) => (each === found.value.controllers[0] ? "now" : time(each.to_ms ?? -1))],
    ["slot", "Slot", (each) => number(each.slot), true, SLOT],
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
  const topics = usePoll("/tiered/v1/topics", 0, round).value?.topics ?? [];
  const made = (found?.entries ?? []).flatMap((each) => each.changes).filter((each) => each.kind === "topic_created");
  const names = new Map([...made, ...topics].map((each) => [each.topic_id, each.name]));
  const columns = [
    ["slot", "Slot", (each) => number(each.slot), true, SLOT],
    ["written_ms", "Written (UTC)", (each) => time(each.written_ms ?? -1)],
    ["controller_epoch", "Epoch", (each) => number(each.controller_epoch), true, EPOCH],
    ["bytes", "Bytes", (each) => bytes(each.bytes), true],
    ["changes", "Changes", (each) => html`<${Changes} key=${each.slot} entry=${each} names=${names} />`],
  ];
  return html`<${Title} words="Metadata">
      <button onClick=${() => { change({ to: "" }); setRound(round + 1); }}>Newest</button>
      <button disabled=${found?.next_to === null || !found} onClick=${() => change({ to: String(found.next_to) })}>Older</button><//>
    <${Loading} state=${log} />
    ${found && html`<dl class="figures">
        <div><dt>Controller</dt><dd>${found.controller < 0 ? "none" : `broker ${found.controller}`}</dd></div>
        <div title=${EPOCH}><dt>Controller epoch</dt><dd>${number(found.controller_epoch)}</dd></div>
        <div title=${SLOT}><dt>Last slot</dt><dd>${number(found.slot)}</dd></div></dl>
      <${Controllers} round=${round} />
      <h2>Log</h2>
      <${Table} name="Metadata log" rows=${found.entries} columns=${columns} />`}`;
}
