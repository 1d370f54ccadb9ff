// A search through all partitions of a topic: where did a record go?
import { html, useEffect, useRef, useState } from "./vendor/htm-preact-3.1.1.js";
import { firstRead, isBack, nextRead, readQuery, request } from "./api.js";
import { number, plain, plural, time } from "./format.js";
import { ErrorBox, Table, saveLines } from "./parts.js";
import { markerWords } from "./value.js";

const STEP = 200;

// Returns the partition that is read next, null for none. Forward, partitions follow one another. Back, it is the one whose
// unread records may be the newest, as long as they may be newer than the last row.
function choosePlace({ rows, most, left }, back) {
  if (!back) return (rows.length < most && left[0]) || null;
  const newest = left.reduce((best, each) => (best && best.oldest >= each.oldest ? best : each), null);
  return newest && (rows.length < most || newest.oldest > rows[most - 1].timestamp) ? newest : null;
}

// Returns what is found after the reply `got` from a partition.
function take({ rows, scanned, left, ...held }, place, view, got) {
  const found = [...rows, ...got.records.map((each) => ({ ...each, partition: place.partition }))];
  const next = { ...place, where: nextRead(place.where, view, got), oldest: got.records.at(-1)?.timestamp ?? place.oldest };
  return {
    ...held,
    rows: isBack(view) ? found.sort((a, b) => b.timestamp - a.timestamp) : found,
    scanned: scanned + (got.scanned ?? got.records.length),
    left: left.flatMap((each) => (each !== place ? [each] : next.where ? [next] : [])),
  };
}

// Searches until the page is full, nothing is left or it is stopped. Another `onward` goes on where it was.
function useFind(topic, partitions, view, run, onward, stopped) {
  const [state, setState] = useState({ rows: [], scanned: 0, hidden: 0, left: [], at: null, busy: true, error: null });
  const held = useRef({ run: 0 });
  useEffect(() => {
    if (!run || !partitions || stopped) return undefined;
    const stop = new AbortController();
    if (held.current.run !== run) {
      const left = partitions.map(({ partition }) => ({ partition, where: firstRead(view), oldest: Infinity }));
      held.current = { run, rows: [], scanned: 0, most: STEP, left };
    } else if (held.current.rows.length >= held.current.most) {
      held.current = { ...held.current, most: held.current.most + STEP };
    }
    const search = async () => {
      const shown = (more) => setState({ ...held.current, rows: held.current.rows.slice(0, held.current.most), hidden: Math.max(0, held.current.rows.length - held.current.most), ...more });
      let error = null;
      try {
        for (let place = choosePlace(held.current, isBack(view)); place; place = choosePlace(held.current, isBack(view))) {
          shown({ at: place.partition, busy: true, error });
          const got = await request(`/topics/${encodeURIComponent(topic)}/partitions/${place.partition}/${readQuery(place.where, view, STEP)}`, { signal: stop.signal });
          held.current = take(held.current, place, view, got);
        }
      } catch (fault) {
        if (fault.name !== "AbortError") error = fault;
      }
      if (held.current.run === run) shown({ at: null, busy: false, error });
    };
    search();
    return () => stop.abort();
  }, [run, partitions, onward, stopped]);
  return state;
}

export function FindRecords({ topic, partitions, view, run, show }) {
  const [onward, setOnward] = useState(0);
  const [stopped, setStopped] = useState("");
  const key = `${run}:${onward}`;
  const found = useFind(topic, partitions, view, run, onward, stopped === key);
  const text = (record, name) => html`<span class="short">${record[`${name}_base64`] ?? plain(record[name]) ?? html`<span class="dim">null</span>`}</span>`;
  const columns = [
    ["partition", "Partition", null, true],
    ["offset", "Offset", (each) => html`<button type="button" class="sort" onClick=${() => show(each)}>${number(each.offset)}</button>`, true],
    ["timestamp", "Time (UTC)", (each) => time(each.timestamp)],
    ["key", "Key", (each) => (each.control ? null : text(each, "key"))],
    ["value", "Value", (each) => (each.control ? html`<span class="dim">${markerWords(each)}</span>` : text(each, "value"))],
  ];
  const goOn = found.left.length > 0 || found.hidden > 0;
  return html`<div>
    <${ErrorBox} error=${found.error} />
    ${(!found.error || found.scanned > 0) && html`<p class="dim" role="status">${`${plural(found.rows.length, "record")} of ${number(found.scanned)} scanned in ${plural((partitions ?? []).length, "partition")}`}${found.busy ? ` … partition ${found.at ?? 0} now ` : " "}
      ${found.busy && html`<button type="button" onClick=${() => setStopped(key)}>Stop</button>`}
      ${!found.busy && goOn && html`<button type="button" onClick=${() => setOnward(onward + 1)}>Search on</button>`}</p>`}
    ${found.rows.length > 0 && html`<p><button type="button" onClick=${() => saveLines(`${topic}-all`, found.rows)}>Save ${plural(found.rows.length, "record")} as JSON lines</button></p>`}
    ${!(found.error && !found.rows.length) && html`<${Table} name="Records" rows=${found.rows} columns=${columns} empty=${found.busy ? "Searching …" : goOn ? "No record fits so far." : "No record fits."} />`}</div>`;
}
