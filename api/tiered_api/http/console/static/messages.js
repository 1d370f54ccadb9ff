// Records of one partition: from an offset, a time or the end, or live. The broker filters them, within a bound.
import { html, useEffect, useState } from "./vendor/htm-preact-3.1.1.js";
import { FILTERS, controlQuery, filterQuery, firstRead, lookForBroker, nextRead, readQuery, request, useAbout, usePoll } from "./api.js";
import { CopyAs } from "./copy.js";
import { FindRecords } from "./find.js";
import { TIME_INPUT, number, plain, plural, time } from "./format.js";
import { ErrorBox, NoMessages, Title, TopicTabs, saveLines, useAddress } from "./parts.js";
import { Produce } from "./produce.js";
import { Content, HeaderValue, markerWords } from "./value.js";

const SHOWN_MAX = 200;
const VALUE_LETTERS = 300;
const NO_FILTER = Object.fromEntries(Object.keys(FILTERS).map((each) => [each, ""]));

function Message({ record, topic, partition, opened }) {
  const [open, setOpen] = useState(opened);
  if (record.control) return html`<tr><td class="number">${number(record.offset)}</td><td><span class="line">${time(record.timestamp)}</span></td><td></td><td class="dim">${markerWords(record)}</td></tr>`;
  return html`<tr>
      <td class="number"><button class="sort" aria-expanded=${open} onClick=${() => setOpen(!open)}>${number(record.offset)}</button></td>
      <td><span class="line">${time(record.timestamp)}</span></td>
      <td class="cut">${record.key_base64 !== undefined ? html`<code>${record.key_base64}</code>` : plain(record.key) ?? html`<span class="dim">null</span>`}</td>
      <td class="cut">${record.value_base64 !== undefined ? html`<code>${record.value_base64.slice(0, VALUE_LETTERS)}</code>` : record.value === null ? html`<span class="dim">null: deletes its key</span>` : plain(record.value.slice(0, VALUE_LETTERS))}</td>
    </tr>
    ${open && html`<tr class="whole"><td></td><td colspan="3">
      <${Content} title="Key" value=${record.key} base64=${record.key_base64} />
      <${Content} title="Value" value=${record.value} base64=${record.value_base64} />
      ${record.headers.length > 0 && html`<h4>Headers</h4><dl>${record.headers.map((each) => html`<div><dt><code>${plain(each.name)}</code></dt><dd><${HeaderValue} base64=${each.value} /></dd></div>`)}</dl>`}
      <p class="dim"><span title="The leaders of the partition are counted: each new one has the next number">written by leader epoch ${record.leader_epoch}</span> · <a href=${`/console/topics/${encodeURIComponent(topic)}?pick=${partition}:${record.offset}`}>where it is stored</a></p>
      <${CopyAs} topic=${topic} partition=${partition} offset=${record.offset} /></td></tr>`}`;
}

// Reads on from `view` until the page is full, nothing is left or the search is stopped. `next` is the read that goes on.
function useSearch(topic, view, run) {
  const [state, setState] = useState({ records: [], scanned: 0, next: "", end: null, busy: true, error: null });
  useEffect(() => {
    if (!run) return undefined;
    const stop = new AbortController();
    const search = async () => {
      let [records, scanned, next, error, end] = [[], 0, "", null, null];
      setState((was) => ({ ...was, busy: true, error: null }));
      try {
        for (let where = firstRead(view); where && records.length < SHOWN_MAX; where = next) {
          const got = await request(`/topics/${encodeURIComponent(topic)}/partitions/${view.partition}/${readQuery(where, view, SHOWN_MAX - records.length)}`, { signal: stop.signal });
          end = got.high_watermark;
          const taken = got.records.slice(0, SHOWN_MAX - records.length);
          records.push(...taken);
          scanned += got.scanned ?? taken.length;
          next = taken.length < got.records.length ? `offset=${taken.at(-1).offset + 1}` : nextRead(where, view, got);
          setState({ records: [...records], scanned, next, end, busy: true, error: null });
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
    const source = new EventSource(`/topics/${encodeURIComponent(topic)}/partitions/${live.partition}/records?offset=latest${filterQuery(live)}${controlQuery(live)}`);
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
      if (!event.data) {
        lookForBroker();
        return;
      }
      setError(JSON.parse(event.data));
      source.close();
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
  if (about?.messages) return html`<${Messages} topic=${topic} cluster=${cluster} writes=${!about.read_only} />`;
  return html`<${Title} kind="Topic" words=${topic} /><${TopicTabs} topic=${topic} shown="messages" />
    ${about && html`<${NoMessages} />`}`;
}

function Messages({ topic, cluster, writes }) {
  const [view, change] = useAddress({ partition: "0", from: "end", at: "", open: "", control: "", ...NO_FILTER });
  const [run, setRun] = useState(1);
  const [live, setLive] = useState(null);
  const [opened, setOpened] = useState(null);
  const [more, setMore] = useState(!!(view.key || view.header || view.json));
  const partitions = usePoll(`/topics/${encodeURIComponent(topic)}/partitions`, 0);
  const all = view.partition === "all";
  const search = useSearch(topic, view, all ? 0 : run);
  const tail = useTail(topic, live);
  const shown = live ? tail.records : search.records;
  const again = () => setRun(run + 1);
  const submit = (event) => {
    event.preventDefault();
    again();
  };
  const show = ({ partition, offset }) => {
    setOpened(`${partition}:${offset}`);
    change({ partition: String(partition), from: "offset", at: String(offset) });
    again();
  };
  const field = (name) => ({ value: view[name], onInput: (event) => change({ [name]: event.target.value }) });
  return html`<${Title} kind="Topic" words=${topic} /><${TopicTabs} topic=${topic} shown="messages" messages />
    <form class="tools" onSubmit=${submit}><fieldset disabled=${!!live}>
      <label>Partition <select ...${field("partition")} onChange=${(event) => { change({ partition: event.target.value }); setRun(run + 1); }}>
        <option value="all" selected=${all}>all</option>
        ${(partitions.value ?? (all ? [] : [{ partition: Number(view.partition) }])).map((each) => html`<option value=${each.partition} selected=${String(each.partition) === view.partition}>${each.partition}</option>`)}</select></label>
      <label>From <select value=${view.from} onChange=${(event) => change({ from: event.target.value })}>
        <option value="end">the end, newest first</option><option value="before">before an offset, newest first</option><option value="start">the start</option><option value="offset">an offset</option><option value="time">a time (UTC)</option></select></label>
      ${(view.from === "offset" || view.from === "before") && html`<label>Offset <input inputmode="numeric" pattern="[0-9]+" required ...${field("at")} /></label>`}
      ${view.from === "time" && html`<label>Time <input ...${TIME_INPUT} ...${field("at")} /></label>`}
      <label>Contains <input type="search" ...${field("filter")} /></label>
      <label><input type="checkbox" checked=${!!view.open} onChange=${(event) => change({ open: event.target.checked ? "1" : "" })} /> open transactions</label>
      <label><input type="checkbox" checked=${!!view.control} disabled=${!!filterQuery(view)} onChange=${(event) => { change({ control: event.target.checked ? "1" : "" }); setRun(run + 1); }} /> markers of transactions</label>
      <button type="button" aria-expanded=${more} onClick=${() => setMore(!more)}>More filters</button>
      ${more && html`<div class="more"><label>Key is <input ...${field("key")} /></label>
        <label>Header <input placeholder="name or name:text" ...${field("header")} /></label>
        <label>JSON value <input class="path" placeholder=${'$.status == "failed"'} ...${field("json")} /></label></div>`}
      <button type="submit">Read</button></fieldset>
      ${!all && search.busy && html`<button type="button" onClick=${() => setRun(0)}>Stop</button>`}
      <button type="button" aria-pressed=${!!live} disabled=${all} onClick=${() => setLive(live ? null : view)}>${live ? "Stop live" : "Live"}</button>
    </form>
    ${writes && html`<${Produce} cluster=${cluster} topic=${topic} partition=${view.partition} after=${() => live || setRun(run + 1)} />`}
    ${all && html`<${FindRecords} topic=${topic} partitions=${partitions.value} view=${view} run=${run} show=${show} />`}
    ${!all && html`<${OnePartition} ...${{ topic, view, change, live, tail, search, shown, opened, again, partitions: partitions.value?.length ?? 1 }} />`}`;
}

function OnePartition({ topic, view, change, live, tail, search, shown, opened, again, partitions }) {
  const [way, next] = search.next.split("=");
  return html`<div><${ErrorBox} error=${live ? tail.error : search.error} />
    ${(live || !search.error || search.scanned > 0) && html`<p class="dim" role="status">${live ? `Live: ${plural(shown.length, "record")} since you asked.`
      : `${plural(search.records.length, "record")} of ${number(search.scanned)} scanned${search.busy ? " …" : ""}${search.end === null ? "" : `; the partition ends at ${number(search.end)}`}`}</p>`}
    ${!live && !search.busy && !search.error && !search.next && !shown.length && partitions > 1 && html`<p>${filterQuery(view) ? "No record of this partition fits." : "This partition has no record there."} <button onClick=${() => { change({ partition: "all" }); again(); }}>Look in all ${number(partitions)} partitions</button></p>`}
    ${shown.length > 0 && html`<div class="wide"><table aria-label="Records"><thead><tr><th class="number" scope="col">Offset</th><th scope="col">Time (UTC)</th><th scope="col">Key</th><th scope="col">Value</th></tr></thead>
      <tbody>${shown.map((record) => html`<${Message} key=${record.offset} record=${record} topic=${topic} partition=${view.partition} opened=${opened === `${view.partition}:${record.offset}`} />`)}</tbody></table></div>`}
    ${shown.length > 0 && html`<p><button onClick=${() => saveLines(`${topic}-${view.partition}-${shown[0].offset}`, shown)}>Save ${plural(shown.length, "record")} as JSON lines</button></p>`}
    ${!live && !search.busy && search.next && html`
      <button onClick=${() => { change({ from: way, at: next }); again(); }}>Read on ${way === "before" ? "before" : "from"} ${number(Number(next))}</button>`}</div>`;
}
