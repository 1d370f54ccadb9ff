// Transactions: transactional ids, the open ones first, and the open transactions of a topic with those that hang.
import { html } from "./vendor/htm-preact-3.1.1.js";
import { Act, tiered } from "./act.js";
import { request, usePoll } from "./api.js";
import { number, plural, span, stateWords, time } from "./format.js";
import { Loading, Table, Title, useAddress } from "./parts.js";

const ENDED = ["CompleteCommit", "CompleteAbort", "Empty", "Dead"];
const age = (ms) => (ms === null || ms <= 0 ? "–" : html`<span title=${`${time(ms)} UTC`}>${span(Math.max(0, (Date.now() - ms) / 1000))}</span>`);

function AbortId({ row }) {
  const plan = async () => ({
    facts: [
      `The open transaction of producer ${row.producer_id} in ${row.partitions.length ? row.partitions.join(", ") : "no partition yet"} is aborted: readers of committed records never see its records.`,
      "Its producer is fenced: it gets an error and has to begin anew.",
    ],
  });
  const perform = async () => {
    await request(`/tiered/v1/transactions/${encodeURIComponent(row.transactional_id)}/abort`, { method: "POST", body: {} });
    return "The transaction is aborted.";
  };
  return html`<${Act} label="Abort" title=${`Abort the transaction of ${row.transactional_id}`} deletes plan=${plan} confirm=${row.transactional_id} command=${() => tiered("transaction", "abort", row.transactional_id)} perform=${perform} />`;
}

function AbortOpen({ topic, row }) {
  const fields = row.hanging ? [] : [{ name: "force", label: "Abort it although its coordinator may yet commit it", type: "checkbox" }];
  const plan = async (values) => ({
    facts: [`The transaction of producer ${row.producer_id} that begins at offset ${number(row.start_offset)} is aborted. Readers of committed records go on behind it.`],
    blocked: row.hanging || values.force ? null : "A coordinator has this transaction, and will end it. Abort its transactional id instead.",
  });
  const perform = async (values) => {
    await request(`/tiered/v1/topics/${encodeURIComponent(topic)}/partitions/${row.partition}/transactions:abort`, { method: "POST", body: { start_offset: row.start_offset, force: !!values.force } });
    return "The transaction is aborted.";
  };
  const command = (values) => tiered("transaction", "abort", "-t", topic, "-p", row.partition, "--start-offset", row.start_offset, ...(values.force ? ["--force"] : []));
  return html`<${Act} label="Abort" title=${`Abort a transaction of ${topic}`} deletes fields=${fields} plan=${plan} confirm=${topic} command=${command} perform=${perform} />`;
}

function OfTopic({ topic }) {
  const found = usePoll(`/tiered/v1/topics/${encodeURIComponent(topic)}/transactions`, 5);
  const columns = [
    ["partition", "Partition", null, true],
    ["start_offset", "Begins at", (each) => number(each.start_offset), true],
    ["producer_id", "Producer id", null, true],
    ["producer_epoch", "Epoch", null, true, "Each start of a producer with the same transactional id has the next number; older ones are fenced"],
    ["last_timestamp", "Last record before", (each) => age(each.last_timestamp), true],
    ["hanging", "State", (each) => (each.hanging ? html`<span class="state fenced">hangs: no coordinator will end it</span>` : "open")],
    ["act", "", (each) => html`<${AbortOpen} topic=${topic} row=${each} />`],
  ];
  return html`<${Loading} state=${found} />
    ${found.value?.partitions_missing > 0 && html`<p class="error">The leaders of ${plural(found.value.partitions_missing, "partition")} do not reply: their transactions are missing here.</p>`}
    ${found.value && html`<${Table} name="Open transactions" rows=${found.value.transactions} columns=${columns} empty="The topic has no open transaction." />`}`;
}

export function TransactionsPage() {
  const [view, change] = useAddress({ topic: "", ended: "" });
  const found = usePoll("/tiered/v1/transactions", 5);
  const topics = usePoll("/tiered/v1/topics", 30);
  const all = found.value?.transactions ?? [];
  const rows = all.filter((each) => view.ended || !ENDED.includes(each.state));
  const columns = [
    ["transactional_id", "Transactional id", (each) => html`<code>${each.transactional_id}</code>`],
    ["state", "State", (each) => stateWords(each.state)],
    ["started_ms", "Open for", (each) => age(each.started_ms), true],
    ["timeout_ms", "Timeout", (each) => (each.timeout_ms === null ? "–" : span(each.timeout_ms / 1000)), true],
    ["producer_id", "Producer id", null, true],
    ["coordinator", "Coordinator", null, true],
    ["partitions", "Partitions", (each) => each.partitions.join(", ") || "–"],
    ["act", "", (each) => !ENDED.includes(each.state) && html`<${AbortId} row=${each} />`],
  ];
  return html`<${Title} words="Transactions"><span class="dim">${found.value && plural(rows.length, view.ended ? "transactional id" : "open transaction")}</span><//>
    <div class="tools"><label><input type="checkbox" checked=${!!view.ended} onChange=${(event) => change({ ended: event.target.checked ? "1" : "" })} /> ids without an open transaction</label></div>
    <${Loading} state=${found} />
    ${found.value?.partial && html`<p class="dim">You may not describe all transactional ids: others are left out.</p>`}
    ${found.value?.left_out > 0 && html`<p class="dim">${plural(found.value.left_out, "id")} without an open transaction left out.</p>`}
    ${found.value && html`<${Table} name="Transactions" rows=${rows} columns=${columns} empty=${view.ended ? "There is no transactional id that you may see." : "No transaction is open that you may see."} />`}
    <h2>Open transactions in the log of a topic</h2>
    <div class="tools"><label>Topic <select onChange=${(event) => change({ topic: event.target.value })}>
      <option value="">choose one</option>
      ${(topics.value?.topics ?? []).filter((each) => !each.is_internal).map((each) => html`<option value=${each.name} selected=${each.name === view.topic}>${each.name}</option>`)}</select></label></div>
    ${view.topic && html`<${OfTopic} key=${view.topic} topic=${view.topic} />`}`;
}
