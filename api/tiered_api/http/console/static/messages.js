// Records of one partition: from an offset, a time or the end, or live. The broker filters them, within a bound.
import { html, useEffect, useRef, useState } from "./vendor/htm-preact-3.1.1.js";
import { FILTERS, filterQuery, readQuery, request, useAbout, usePoll } from "./api.js";
import { CopyAs } from "./copy.js";
import { FindRecords, NewestAlone } from "./find.js";
import { number, plural, time } from "./format.js";
import { ErrorBox, NoMessages, Title, useAddress } from "./parts.js";
import { Produce } from "./produce.js";

const SHOWN_MAX = 200;
const NO_FILTER = Object.fromEntries(Object.keys(FILTERS).map((each) => [each, ""]));

// The value of a header: as text if it is UTF-8, else as it came, in base64.
function HeaderValue({ base64 }) {
  if (base64 === null) return html`<span class="dim">null</span>`;
  try {
    const bytes = Uint8Array.from(atob(base64), (each) => each.charCodeAt(0));
    return html`<code>${new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes)}</code>`;
  } catch {
    return html`<span class="dim">base64</span> <code>${base64}</code>`;
  }
}

function Content({ value, base64 }) {
  if (base64 !== undefined) return html`<span class="dim">base64</span> <code>${base64}</code>`;
  if (value === null) return html`<span class="dim">null</span>`;
  let shown = value;
  try {
    const parsed = JSON.parse(value);
    if (parsed !== null && typeof parsed === "object") shown = JSON.stringify(parsed, null, 2);
  } catch {
    // Text that is no JSON is shown as it is.
  }
  return html`<pre>${shown}</pre>`;
}

function Message({ record, topic, partition }) {
  const [open, setOpen] = useState(false);
  const size = (record.value ?? record.value_base64 ?? "").length;
  return html`<tr>
      <td class="number"><button class="sort" aria-expanded=${open} onClick=${() => setOpen(!open)}>${number(record.offset)}</button></td>
      <td>${time(record.timestamp)}</td>
      <td class="cut">${record.key_base64 !== undefined ? html`<code>${record.key_base64}</code>` : record.key ?? html`<span class="dim">null</span>`}</td>
      <td class="cut">${record.value_base64 !== undefined ? html`<code>${record.value_base64.slice(0, 200)}</code>` : record.value === null ? html`<span class="dim">null: deletes its key</span>` : record.value.slice(0, 200)}</td>
    </tr>
    ${open && html`<tr class="whole"><td></td><td colspan="3">
      <h4>Key</h4><${Content} value=${record.key} base64=${record.key_base64} />
      <h4>Value <span class="dim">${plural(size, "character")}</span></h4><${Content} value=${record.value} base64=${record.value_base64} />
      ${record.headers.length > 0 && html`<h4>Headers</h4><dl>${record.headers.map((each) => html`<div><dt><code>${each.name}</code></dt><dd><${HeaderValue} base64=${each.value} /></dd></div>`)}</dl>`}
      <p class="dim">leader epoch ${record.leader_epoch} · <a href=${`/console/topics/${encodeURIComponent(topic)}?pick=${partition}:${record.offset}`}>where it is stored</a></p>
      <${CopyAs} topic=${topic} partition=${partition} offset=${record.offset} /></td></tr>`}`;
}

// Saves records as a file with one JSON object a line.
function download(topic, partition, records) {
  const lines = records.map((each) => `${JSON.stringify(each)}\n`);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob(lines, { type: "application/x-ndjson" }));
  link.download = `${topic}-${partition}-${records[0].offset}.jsonl`;
  link.click();
  URL.revokeObjectURL(link.href);
}

// Reads on from `view` until the page is full, the end is reached or the search is stopped.
function useSearch(topic, view, run) {
  const [state, setState] = useState({ records: [], scanned: 0, next: null, end: null, busy: false, error: null });
  useEffect(() => {
    if (!run) return undefined;
    const stop = new AbortController();
    const search = async () => {
      let [records, scanned, next, error, end] = [[], 0, null, null, null];
      try {
        let where = view.from === "time" ? `timestamp=${Date.parse(`${view.at}Z`) || 0}` : `offset=${encodeURIComponent(view.from === "offset" ? view.at || "0" : "earliest")}`;
        if (view.from === "end") {
          const bounds = await request(`/topics/${encodeURIComponent(topic)}/partitions/${view.partition}/offsets`, { signal: stop.signal });
          where = `offset=${Math.max(bounds.beginning_offset, bounds.end_offset - SHOWN_MAX)}`;
        }
        for (;;) {
          const got = await request(`/topics/${encodeURIComponent(topic)}/partitions/${view.partition}/${readQuery(where, view, SHOWN_MAX - records.length)}`, { signal: stop.signal });
          end = got.high_watermark;
          const taken = got.records.slice(0, SHOWN_MAX - records.length);
          records.push(...taken);
          scanned += got.scanned ?? taken.length;
          next = taken.length < got.records.length ? taken.at(-1).offset + 1 : got.next_offset;
          setState({ records: [...records], scanned, next, end, busy: true, error: null });
          if (records.length >= SHOWN_MAX || where === `offset=${next}` || next >= got.high_watermark) break;
          where = `offset=${next}`;
        }
      } catch (fault) {
        if (fault.name !== "AbortError") error = fault;
      }
      setState({ records, scanned, next, end, busy: false, error });
    };
    search();
    return () => stop.abort();
  }, [run]);
  return state;
}

// Follows a partition: `live` is the view of which, null for none.
function useTail(topic, live) {
  const [records, setRecords] = useState([]);
  const [error, setError] = useState(null);
  useEffect(() => {
    setRecords([]);
    setError(null);
    if (!live) return undefined;
    const source = new EventSource(`/topics/${encodeURIComponent(topic)}/partitions/${live.partition}/records?offset=latest${filterQuery(live)}`);
    let kept = [];
    let timer = 0;
    source.onmessage = (event) => {
      kept = [JSON.parse(event.data), ...kept].slice(0, SHOWN_MAX);
      timer = timer || setTimeout(() => {
        timer = 0;
        setRecords(kept);
      }, 200);
    };
    source.addEventListener("error", (event) => {
      if (event.data) {
        setError(JSON.parse(event.data));
        source.close();
      }
    });
    return () => {
      source.close();
      clearTimeout(timer);
    };
  }, [live]);
  return { records, error };
}

export function MessagesPage({ topic, cluster }) {
  const about = useAbout();
  if (about?.messages) return html`<${Messages} topic=${topic} cluster=${cluster} />`;
  return html`<${Title} words=${topic}><a class="button" href=${`/console/topics/${encodeURIComponent(topic)}`}>Tiers</a><//>
    ${about && html`<${NoMessages} />`}`;
}

function Messages({ topic, cluster }) {
  const [view, change] = useAddress({ partition: "0", from: "end", at: "", open: "", ...NO_FILTER });
  const [run, setRun] = useState(1);
  const [live, setLive] = useState(null);
  const partitions = usePoll(`/topics/${encodeURIComponent(topic)}/partitions`, 0);
  const all = view.partition === "all";
  const search = useSearch(topic, view, all ? 0 : run);
  const tail = useTail(topic, live);
  const shown = live ? tail.records : view.from === "end" ? [...search.records].reverse() : search.records;
  const submit = (event) => {
    event.preventDefault();
    setRun(run + 1);
  };
  const fromStart = () => {
    change({ from: "start" });
    setRun(run + 1);
  };
  const field = (name) => ({ value: view[name], onInput: (event) => change({ [name]: event.target.value }) });
  return html`<${Title} words=${topic}><a class="button" href=${`/console/topics/${encodeURIComponent(topic)}`}>Tiers</a><//>
    <form class="tools" onSubmit=${submit}><fieldset disabled=${!!live}>
      <label>Partition <select ...${field("partition")} onChange=${(event) => { change({ partition: event.target.value }); setRun(run + 1); }}>
        <option value="all" selected=${all}>all</option>
        ${(partitions.value ?? (all ? [] : [{ partition: Number(view.partition) }])).map((each) => html`<option value=${each.partition} selected=${String(each.partition) === view.partition}>${each.partition}</option>`)}</select></label>
      <label>From <select value=${view.from} onChange=${(event) => change({ from: event.target.value })}>
        <option value="end">the end</option><option value="start">the start</option><option value="offset">offset</option><option value="time">time (UTC)</option></select></label>
      ${view.from === "offset" && html`<label>Offset <input inputmode="numeric" pattern="[0-9]+" required ...${field("at")} /></label>`}
      ${view.from === "time" && html`<label>Time <input type="datetime-local" step="1" required ...${field("at")} /></label>`}
      <label>Contains <input type="search" ...${field("filter")} /></label>
      <label><input type="checkbox" checked=${!!view.open} onChange=${(event) => change({ open: event.target.checked ? "1" : "" })} /> open transactions</label>
      <details open=${!!(view.key || view.header || view.json)}><summary>More filters</summary>
        <label>Key is <input ...${field("key")} /></label>
        <label>Header <input placeholder="name or name:text" ...${field("header")} /></label>
        <label>JSON value <input class="path" placeholder=${'$.status == "failed"'} ...${field("json")} /></label></details>
      <button type="submit">Read</button></fieldset>
      ${search.busy && html`<button type="button" onClick=${() => setRun(0)}>Stop</button>`}
      <button type="button" aria-pressed=${!!live} disabled=${all} onClick=${() => setLive(live ? null : view)}>${live ? "Stop live" : "Live"}</button>
    </form>
    ${all && html`<${FindRecords} topic=${topic} partitions=${partitions.value} view=${view} run=${run} stop=${() => setRun(0)} again=${fromStart} show=${(each) => { change({ partition: String(each.partition), from: "offset", at: String(each.offset) }); setRun(run + 1); }} />`}
    ${!all && html`<${OnePartition} ...${{ topic, cluster, view, change, live, tail, search, shown, fromStart, again: () => setRun(run + 1) }} />`}`;
}

function OnePartition({ topic, cluster, view, change, live, tail, search, shown, fromStart, again }) {
  return html`<div><${ErrorBox} error=${live ? tail.error : search.error} />
    <p class="dim" role="status">${live ? `Live: ${plural(shown.length, "record")} since you asked.`
      : `${plural(search.records.length, "record")} of ${number(search.scanned)} scanned${search.busy ? " …" : ""}${search.end === null ? "" : `; the partition ends at ${number(search.end)}`}`}</p>
    ${!live && html`<${NewestAlone} view=${view} busy=${search.busy} again=${fromStart} />`}
    ${shown.length > 0 && html`<div class="wide"><table aria-label="Records"><thead><tr><th class="number" scope="col">Offset</th><th scope="col">Time (UTC)</th><th scope="col">Key</th><th scope="col">Value</th></tr></thead>
      <tbody>${shown.map((record) => html`<${Message} key=${record.offset} record=${record} topic=${topic} partition=${view.partition} />`)}</tbody></table></div>`}
    ${shown.length > 0 && html`<p><button onClick=${() => download(topic, view.partition, shown)}>Save ${plural(shown.length, "record")} as JSON lines</button></p>`}
    ${!live && !search.busy && search.next !== null && search.next < search.end && html`
      <button onClick=${() => { change({ from: "offset", at: String(search.next) }); again(); }}>Read on from ${number(search.next)}</button>`}
    <${Produce} cluster=${cluster} topic=${topic} partition=${view.partition} /></div>`;
}
