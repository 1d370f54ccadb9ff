// One segment of a partition in words, with its first records, and the list of all segments.
import { html, useEffect, useRef, useState } from "./vendor/htm-preact-3.1.1.js";
import { request, usePoll } from "./api.js";
import { bytes, number, plural, time } from "./format.js";
import { ErrorBox, Loading, NoMessages, Table } from "./parts.js";
import { Why } from "./why.js";

const FIRST_RECORDS = 5;
const READ_BYTES = 16384;
const LISTED = 200;

const pathOf = (topic, partition) => `/topics/${encodeURIComponent(topic)}/partitions/${partition}`;

function whereIs(segment) {
  const disks = segment.on_brokers.length && `on the ${segment.on_brokers.length > 1 ? "disks of brokers" : "disk of broker"} ${segment.on_brokers.join(", ")}`;
  return [segment.object && "in the bucket", disks].filter(Boolean).join(" and ") || "nowhere that is known";
}

function FirstRecords({ topic, partition, segment, messages }) {
  const from = segment.base_offset;
  const read = usePoll(messages ? `${pathOf(topic, partition)}/records?offset=${from}&max_bytes=${READ_BYTES}` : null, 0);
  if (messages === undefined) return null;
  if (!messages) return html`<${NoMessages} />`;
  const rows = (read.value?.records ?? []).filter((each) => each.offset < segment.end_offset).slice(0, FIRST_RECORDS);
  const text = (name) => (each) => html`<span class="short">${each[`${name}_base64`] ?? each[name] ?? html`<span class="dim">null</span>`}</span>`;
  const columns = [
    ["offset", "Offset", (each) => number(each.offset), true],
    ["timestamp", "Time (UTC)", (each) => time(each.timestamp)],
    ["key", "Key", text("key")],
    ["value", "Value", text("value")],
  ];
  const more = `/console${pathOf(topic, partition).replace(/\/partitions\/.*/, "")}/messages?partition=${partition}&from=offset&at=${from}`;
  return html`<h4>First records</h4>
    <${Loading} state=${read} />
    ${read.value && html`<${Table} name="First records" rows=${rows} columns=${columns} empty="The segment has no committed record." />`}
    <p><a class="button" href=${more}>Read on from ${number(from)}</a></p>`;
}

// Why some segments are missing, or all of them.
function Lack({ error, segments }) {
  if (!error) return null;
  return segments.length ? html`<p class="verdict">${error}.</p>` : html`<${ErrorBox} error=${{ message: error }} />`;
}

// Shows the segment that holds `offset`. `onPick` gets an offset of another one, or null to close.
export function SegmentPanel({ topic, partition, offset, messages, onPick, onFound }) {
  const found = usePoll(`/tiered/v1${pathOf(topic, partition)}/segments?from=${offset}&limit=1`, 30);
  // The last one stays while the next one comes, so that the buttons keep the focus.
  const last = useRef(null);
  if (found.value) last.current = found.value;
  const known = found.value ?? (found.error ? null : last.current);
  const segment = known?.segments[0];
  const go = (offset) => offset !== null && offset !== undefined && onPick(offset);
  useEffect(() => {
    if (segment) onFound?.([segment.base_offset, segment.end_offset]);
  }, [segment?.base_offset, segment?.end_offset]);
  return html`<div class="panel" role="region" aria-label=${`Segment of partition ${partition}`}>
    <${Loading} state=${{ value: known, error: found.error }} />
    <${Lack} error=${known?.error} segments=${known?.segments} />
    ${known && !segment && !known.error && html`<p>Offset ${number(offset)} is in no segment now.</p>`}
    ${segment && html`
      <p><strong>Offsets ${number(segment.base_offset)} to ${number(segment.end_offset - 1)}</strong> of partition ${partition}, ${bytes(segment.bytes)}: ${whereIs(segment)}.</p>
      <dl class="facts">
        ${segment.why_local && html`<div><dt>Why it is still on the leader's disk</dt><dd>${segment.why_local}</dd></div>`}
        ${segment.object && html`<div><dt>Object</dt><dd><code>${segment.object.key}</code></dd></div>
          <div><dt>In the bucket since</dt><dd>${time(segment.object.uploaded_ms)} UTC</dd></div>`}
        ${segment.newest_timestamp !== null && html`<div><dt>Newest record</dt><dd>${time(segment.newest_timestamp)} UTC</dd></div>`}
        ${segment.created_ms !== null && html`<div><dt>On the leader's disk since</dt><dd>${time(segment.created_ms)} UTC</dd></div>`}
        ${segment.cleaned && html`<div><dt>Compaction</dt><dd>has cleaned it</dd></div>`}
      </dl>
      <${Why} key=${`why-${segment.base_offset}`} path=${`/tiered/v1${pathOf(topic, partition)}/segments/${segment.base_offset}`} what="this segment" />
      <${FirstRecords} key=${segment.base_offset} topic=${topic} partition=${partition} segment=${segment} messages=${messages} />`}
    <p class="tools">
      <button aria-disabled=${!segment?.base_offset} onClick=${() => go(segment?.base_offset ? segment.base_offset - 1 : null)}>Segment before</button>
      <button aria-disabled=${!known?.next_from} onClick=${() => go(known?.next_from)}>Next segment</button>
      <button onClick=${() => onPick(null)}>Close</button></p>
    <${AllSegments} topic=${topic} partition=${partition} onPick=${onPick} />
  </div>`;
}

function AllSegments({ topic, partition, onPick }) {
  const [state, setState] = useState({ rows: null, next: 0, error: null });
  const load = async () => {
    try {
      const got = await request(`/tiered/v1${pathOf(topic, partition)}/segments?from=${state.next}&limit=${LISTED}`);
      setState({ rows: [...(state.rows ?? []), ...got.segments], next: got.next_from, error: null, lack: got.error });
    } catch (error) {
      setState({ ...state, error });
    }
  };
  const columns = [
    ["base_offset", "First offset", (each) => html`<button class="sort" onClick=${() => onPick(each.base_offset)}>${number(each.base_offset)}</button>`, true],
    ["end_offset", "Offsets", (each) => number(each.end_offset - each.base_offset), true],
    ["bytes", "Bytes", (each) => bytes(each.bytes), true],
    ["newest_timestamp", "Newest record (UTC)", (each) => time(each.newest_timestamp ?? -1)],
    ["on_brokers", "Where", whereIs],
    ["why_local", "Why still on the disk", (each) => each.why_local ?? "–"],
  ];
  return html`<details onToggle=${(event) => event.target.open && state.rows === null && load()}><summary>All segments of partition ${partition}</summary>
    <${ErrorBox} error=${state.error} />
    <${Lack} error=${state.lack} segments=${state.rows} />
    ${state.rows && html`<p class="dim">${plural(state.rows.length, "segment")}${state.next !== null ? " so far" : ""}</p><${Table} name="Segments" rows=${state.rows} columns=${columns} />`}
    ${state.rows && state.next !== null && html`<button onClick=${load}>Show ${number(LISTED)} more</button>`}</details>`;
}
