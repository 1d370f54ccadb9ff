// Settings of brokers, running moves, and the audit log: who changed what.
import { html, useEffect, useState } from "./vendor/htm-preact-3.1.1.js";
import { Act, tiered } from "./act.js";
import { request, useAbout, useBrokers, usePoll } from "./api.js";
import { brokers, bytes, number, plural } from "./format.js";
import { ErrorBox, Loading, SettingName, Table, Title, useAddress } from "./parts.js";
import { SetConfig } from "./topic_acts.js";

const source = (each) => each.source.toLowerCase().replaceAll("_", " ");

export function SettingsPage({ cluster }) {
  const [view, change] = useAddress({ broker: "", search: "", all: "" });
  const about = useAbout();
  const known = usePoll(cluster && `/v3/clusters/${cluster}/brokers`, 30);
  const node = view.broker || about?.node_id;
  // A broker alone knows the values that it was started with; of others, the metadata has what was set since.
  const own = String(node) === String(about?.node_id);
  const root = `/v3/clusters/${cluster}`;
  const configs = usePoll(cluster && node && (own ? `${root}/brokers/${node}/configs` : `${root}/brokers/-/configs`), 5);
  const wanted = view.search.toLowerCase();
  const rows = (configs.value?.data ?? []).filter((each) => String(each.broker_id) === String(node) && each.name.includes(wanted) && (view.all || !each.is_default || wanted));
  const columns = [
    ["name", "Setting", (each) => html`<${SettingName} config=${each} />`],
    ["value", "Value", (each) => html`<code>${each.is_sensitive ? "hidden" : each.value ?? "–"}</code>`],
    ["source", "From", source],
    ["act", "", (each) => (each.is_read_only ? html`<span class="dim line">set at the start</span>` : !each.is_sensitive && html`
      <${SetConfig} path=${(values) => `${root}/${values.scope ? "broker-configs" : `brokers/${node}/configs`}:alter`} config=${each} words=${`broker ${node}`}
        scopes=${[["", `broker ${node}`], ["all", "all brokers"]]} scope=${each.source === "DYNAMIC_DEFAULT_BROKER_CONFIG" ? "all" : ""}
        command=${(values) => tiered("cluster", "config", values.reset ? "reset" : "set", values.reset ? each.name : `${each.name}=${values.value}`, ...(values.scope ? [] : ["--node", node]))} />`)],
  ];
  return html`<${Title} words="Settings"><span class="dim">${configs.value && plural(rows.length, "setting")}</span><//>
    <div class="tools">
      <label>Broker <select onChange=${(event) => change({ broker: event.target.value })}>
        ${(known.value?.data ?? []).map((each) => html`<option value=${each.broker_id} selected=${String(each.broker_id) === String(node)}>${each.broker_id}</option>`)}</select></label>
      <label>Search <input type="search" value=${view.search} onInput=${(event) => change({ search: event.target.value })} /></label>
      <label><input type="checkbox" checked=${!!view.all} onChange=${(event) => change({ all: event.target.checked ? "1" : "" })} /> those with their defaults too</label></div>
    ${configs.value && !view.all && !wanted && html`<p class="dim">These differ from their defaults. <button class="sort" onClick=${() => change({ all: "1" })}>Show all settings</button>: many can be changed while the brokers run.</p>`}
    ${!own && about && html`<p class="dim">Values that broker ${node} was started with are shown by its own console.</p>`}
    <${Loading} state=${configs} />
    ${configs.value && html`<${Table} name="Settings" rows=${rows} columns=${columns} empty=${view.search ? "No setting has this in its name." : "All settings have their defaults."} />`}`;
}

export function MovesPage({ cluster }) {
  const moves = usePoll(cluster && `/v3/clusters/${cluster}/topics/-/partitions/-/reassignment`, 2);
  const rows = moves.value?.data ?? [];
  const columns = [
    ["topic_name", "Topic", (each) => html`<a href=${`/console/topics/${encodeURIComponent(each.topic_name)}`}>${each.topic_name}</a>`],
    ["partition_id", "Partition", null, true],
    ["adding_replicas", "Copies to", (each) => each.adding_replicas.join(", ") || "–"],
    ["removing_replicas", "Removed from", (each) => each.removing_replicas.join(", ") || "–"],
    ["left", "Left to copy", (each) => html`<${LeftToCopy} key=${`${each.topic_name}/${each.partition_id}`} topic=${each.topic_name} partition=${each.partition_id} adding=${each.adding_replicas} />`, true],
    ["act", "", (each) => html`<${CancelMove} topic=${each.topic_name} partition=${each.partition_id} adding=${each.adding_replicas} />`],
  ];
  return html`<${Title} words="Moves"><span class="dim">${moves.value && plural(rows.length, "partition")}</span><//>
    <p class="dim">Partitions that are copied to other brokers now. The page of a topic begins a move.</p>
    <${Loading} state=${moves} />
    ${moves.value && html`<${Table} name="Moves" rows=${rows} columns=${columns} empty="No partition moves." />`}`;
}

// Returns the bytes that the copies on `adding` lack of the leader's disk, as if each offset had the same; null if a broker
// does not say what it has. A copy takes what is in the bucket alone from there.
export function bytesLeft({ leader, brokers: places }, adding) {
  const own = places.find((each) => each.node_id === leader);
  const copies = places.filter((each) => adding.includes(each.node_id));
  if (!own || own.error || copies.length < adding.length || copies.some((each) => each.error)) return null;
  const size = own.local_bytes / Math.max(1, own.log_end_offset - own.local_start_offset);
  return copies.reduce((sum, each) => sum + size * Math.max(0, own.log_end_offset - Math.max(each.log_end_offset, own.local_start_offset)), 0);
}

const BEYOND = Number.MAX_SAFE_INTEGER;

function LeftToCopy({ topic, partition, adding }) {
  const places = usePoll(adding.length ? `/tiered/v1/topics/${encodeURIComponent(topic)}/partitions/${partition}/segments?from=${BEYOND}&limit=1` : null, 4).value;
  return html`<span title="what the copies lack, about">${places ? bytes(bytesLeft(places, adding)) : "–"}</span>`;
}

function CancelMove({ topic, partition, adding }) {
  const path = `/tiered/v1/topics/${encodeURIComponent(topic)}/reassignments`;
  const body = (only) => ({ partitions: [{ partition, replicas: null }], validate_only: only });
  const plan = async () => {
    const [row] = (await request(path, { method: "POST", body: body(true) })).partitions;
    return { facts: [`The partition stays on ${brokers(row.target)}.`, `What was copied to ${brokers(adding)} will be gone.`] };
  };
  const perform = async () => {
    const [row] = (await request(path, { method: "POST", body: body(false) })).partitions;
    if (row.error) throw new Error(row.error);
    return "The move is cancelled.";
  };
  return html`<${Act} label="Cancel the move" title=${`Cancel the move of ${topic}/${partition}`} plan=${plan} confirm=${topic} command=${() => tiered("cluster", "reassign", "--cancel", `${topic}/${partition}`)} perform=${perform} />`;
}

const READ_BYTES = 1 << 20;
const BACK = 20_000;
const SHOWN_MAX = 500;

// Returns the events of a record of the audit log: one for each resource that it names.
function events(record) {
  let event;
  try {
    event = JSON.parse(record.value);
  } catch {
    return [];
  }
  if (event === null || typeof event !== "object" || !event.event) return [];
  const names = Array.isArray(event.resource_names) ? event.resource_names : [event.resource_name];
  return names.map((name) => ({ ...event, resource_name: name === undefined ? "" : String(name) }));
}

// Reads the newest records of the audit topic, the newest ones first.
function useAudit(topic, view, run) {
  const [state, setState] = useState({ rows: [], scanned: 0, busy: false, error: null });
  useEffect(() => {
    if (!topic) return undefined;
    const stop = new AbortController();
    const search = async () => {
      let [rows, scanned, error] = [[], 0, null];
      setState({ rows, scanned, busy: true, error });
      try {
        const root = `/topics/${encodeURIComponent(topic)}/partitions`;
        const partitions = await request(root, { signal: stop.signal });
        for (const { partition } of partitions) {
          const bounds = await request(`${root}/${partition}/offsets`, { signal: stop.signal });
          let next = Math.max(bounds.beginning_offset, bounds.end_offset - BACK);
          while (next < bounds.end_offset) {
            const got = await request(`${root}/${partition}/records?offset=${next}&max_bytes=${READ_BYTES}`, { signal: stop.signal });
            if (got.next_offset <= next) break;
            next = got.next_offset;
            scanned += got.records.length;
            rows.push(...got.records.flatMap(events).filter((each) => fits(each, view)));
            rows = rows.sort((a, b) => ((a.time ?? "") < (b.time ?? "") ? 1 : -1)).slice(0, SHOWN_MAX);
            setState({ rows, scanned, busy: true, error: null });
          }
        }
      } catch (fault) {
        if (fault.name === "AbortError") return;
        error = fault;
      }
      setState({ rows, scanned, busy: false, error });
    };
    search();
    return () => stop.abort();
  }, [topic, view.event, view.resource, view.principal, run]);
  return state;
}

function fits(event, view) {
  const has = (text, wanted) => (text ?? "").toLowerCase().includes(wanted.toLowerCase());
  return (!view.event || event.event === view.event) && has(event.resource_name, view.resource) && has(event.principal, view.principal);
}

export function AuditPage() {
  const about = useAbout();
  useBrokers();
  const [view, change] = useAddress({ event: "change", resource: "", principal: "" });
  const [run, setRun] = useState(0);
  const found = useAudit(about?.audit_topic, view, run);
  const field = (name) => ({ value: view[name], onInput: (event) => change({ [name]: event.target.value }) });
  const columns = [
    ["time", "Time (UTC)", (each) => html`<span class="line">${(each.time ?? "").replace("T", " ").slice(0, 19)}</span>`],
    ["principal", "Who"],
    ["operation", "Did", (each) => each.operation ?? each.event],
    ["resource_type", "What", (each) => (each.resource_type ?? "").toLowerCase().replaceAll("_", " ")],
    ["resource_name", "Name", (each) => each.resource_name || (each.resource_type?.toLowerCase() === "broker" ? html`<span class="dim">all brokers</span>` : "")],
    ["detail", "Detail", (each) => each.detail ?? each.why ?? each.mechanism ?? ""],
    ["outcome", "Outcome"],
    ["host", "From"],
  ];
  return html`<${Title} words="Audit" />
    ${about && !about.audit_topic && html`<p class="verdict">There is no audit topic that you may see. <code>tiered.audit.topic</code> names one; <code>tiered.audit.file</code> writes the log to a file of each broker, which <code>tiered audit --file</code> reads. <a href="/console/metadata">The metadata log</a> has each change with its time, and not who made it.</p>`}
    ${about?.audit_topic && html`
      <div class="tools">
        <label>Events <select onChange=${(event) => change({ event: event.target.value })}>
          ${[["change", "changes"], ["operation", "refusals"], ["login", "logins"], ["share", "shares"], ["", "all"]].map(([value, label]) => html`<option value=${value} selected=${value === view.event}>${label}</option>`)}</select></label>
        <label>Name of a topic, group, user … <input type="search" ...${field("resource")} /></label>
        <label>Principal <input type="search" ...${field("principal")} /></label>
        <button onClick=${() => setRun(run + 1)}>Read again</button></div>
      <${ErrorBox} error=${found.error} />
      ${(!found.error || found.scanned > 0) && html`<p class="dim" role="status">${plural(found.rows.length, "event")} of ${number(found.scanned)} scanned${found.busy ? " …" : ""}, the newest first.</p>`}
      ${!(found.error && !found.rows.length) && html`<${Table} name="Audit" rows=${found.rows} columns=${columns} empty=${found.busy ? "Reading …" : "No event fits."} />`}
      <h4>The same as a command</h4><pre>${tiered("audit", ...(view.event ? ["--event", view.event] : []), ...(view.resource ? ["--resource", view.resource] : []), ...(view.principal ? ["--principal", view.principal] : []))}</pre>`}`;
}
