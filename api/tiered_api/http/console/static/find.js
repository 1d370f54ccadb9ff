// A search through all partitions of a topic, one after the other: where did a record go?
import { html, useEffect, useState } from "./vendor/htm-preact-3.1.1.js";
import { FILTERS, readQuery, request } from "./api.js";
import { number, plural, time } from "./format.js";
import { ErrorBox, Table } from "./parts.js";

const SHOWN_MAX = 200;

// Returns the query of the first read of a partition.
async function begin(root, view, signal) {
  if (view.from === "time") return `timestamp=${Date.parse(`${view.at}Z`) || 0}`;
  if (view.from === "start") return "offset=earliest";
  const bounds = await request(`${root}/offsets`, { signal });
  const from = view.from === "offset" ? Number(view.at) || 0 : bounds.end_offset - SHOWN_MAX;
  return `offset=${Math.min(bounds.end_offset, Math.max(bounds.beginning_offset, from))}`;
}

function useFind(topic, partitions, view, run) {
  const [state, setState] = useState({ rows: [], scanned: 0, at: null, busy: false, error: null });
  useEffect(() => {
    if (!run || !partitions) return undefined;
    const stop = new AbortController();
    const search = async () => {
      const rows = [];
      let scanned = 0;
      let error = null;
      try {
        for (const { partition } of partitions) {
          const root = `/topics/${encodeURIComponent(topic)}/partitions/${partition}`;
          for (let where = await begin(root, view, stop.signal); where && rows.length < SHOWN_MAX;) {
            const got = await request(`${root}/${readQuery(where, view, SHOWN_MAX - rows.length)}`, { signal: stop.signal });
            scanned += got.scanned ?? got.records.length;
            rows.push(...got.records.map((each) => ({ ...each, partition })));
            const end = view.open ? got.high_watermark : got.last_stable_offset;
            where = got.next_offset < end && `offset=${got.next_offset}` !== where ? `offset=${got.next_offset}` : "";
            setState({ rows: rows.slice(0, SHOWN_MAX), scanned, at: partition, busy: true, error });
          }
        }
      } catch (fault) {
        if (fault.name !== "AbortError") error = fault;
      }
      setState({ rows: rows.slice(0, SHOWN_MAX), scanned, at: null, busy: false, error });
    };
    search();
    return () => stop.abort();
  }, [run, partitions]);
  return state;
}

// Says that a filter saw the newest records alone, and offers the rest: a person who finds nothing thinks of the topic.
export function NewestAlone({ view, busy, again }) {
  if (view.from !== "end" || busy || !Object.keys(FILTERS).some((each) => view[each])) return null;
  return html`<p class="verdict">This searched the newest ${SHOWN_MAX} records of each partition that you chose, no older ones.
    ${" "}<button type="button" onClick=${again}>Search from the start</button></p>`;
}

export function FindRecords({ topic, partitions, view, run, stop, show, again }) {
  const found = useFind(topic, partitions, view, run);
  const text = (record, name) => html`<span class="short">${record[`${name}_base64`] ?? record[name] ?? html`<span class="dim">null</span>`}</span>`;
  const columns = [
    ["partition", "Partition", null, true],
    ["offset", "Offset", (each) => html`<button type="button" class="sort" onClick=${() => show(each)}>${number(each.offset)}</button>`, true],
    ["timestamp", "Time (UTC)", (each) => time(each.timestamp)],
    ["key", "Key", (each) => text(each, "key")],
    ["value", "Value", (each) => text(each, "value")],
  ];
  return html`<div>
    <${ErrorBox} error=${found.error} />
    <p class="dim" role="status">${`${plural(found.rows.length, "record")} of ${number(found.scanned)} scanned in ${plural((partitions ?? []).length, "partition")}`}${found.busy ? ` … partition ${found.at ?? 0} now ` : ""}
      ${found.busy && html`<button type="button" onClick=${stop}>Stop</button>`}</p>
    ${found.rows.length >= SHOWN_MAX && html`<p class="dim">The search ends at ${SHOWN_MAX} records.</p>`}
    <${NewestAlone} view=${view} busy=${found.busy} again=${again} />
    <${Table} name="Records" rows=${found.rows} columns=${columns} empty=${found.busy ? "Searching …" : "No record fits."} /></div>`;
}
