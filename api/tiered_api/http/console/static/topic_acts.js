// The acts on one topic. Each says in numbers what it changes, and which command does the same.
import { html } from "./vendor/htm-preact-3.1.1.js";
import { Act, tiered } from "./act.js";
import { bootstrapBrokers, request } from "./api.js";
import { TIME_INPUT, brokers, bytes, number, parseTime, plain, plural, requireTime, time } from "./format.js";

const NAMED_MAX = 10;
const post = (path, body) => request(path, { method: "POST", body });
const sum = (rows, name) => rows.reduce((total, each) => total + Math.max(0, each[name] ?? 0), 0);
const records = (rows) => rows.reduce((total, each) => total + Math.max(0, (each.high_watermark ?? 0) - (each.log_start_offset ?? 0)), 0);

// Raises the first error of the partitions of an act.
function check(reply) {
  const refused = reply.partitions.filter((each) => each.error);
  if (refused.length) throw new Error(`${plural(refused.length, "partition")} not done. Partition ${refused[0].partition}: ${refused[0].error}`);
  return reply;
}

export function CreateTopic({ cluster }) {
  const fields = [
    { name: "name", label: "Name", required: true, maxlength: 249 },
    { name: "partitions", label: "Partitions (empty: as the brokers are set)", type: "number", min: 1 },
    { name: "replicas", label: "Replicas of each (empty: as the brokers are set)", type: "number", min: 1 },
    { name: "settings", label: "Settings, as name=value with blanks between", placeholder: "retention.ms=86400000 cleanup.policy=compact" },
  ];
  const body = (values, only) => ({
    topic_name: values.name,
    ...(values.partitions ? { partitions_count: Number(values.partitions) } : {}),
    ...(values.replicas ? { replication_factor: Number(values.replicas) } : {}),
    configs: settingsOf(values).map(([name, value]) => ({ name, value })),
    validate_only: only,
  });
  const path = `/v3/clusters/${cluster}/topics`;
  const plan = async (values) => {
    const made = await post(path, body(values, true));
    return { facts: [`${plural(made.partitions_count, "partition")} with ${plural(made.replication_factor, "replica")} each.`, "A topic keeps its name and its partitions; more partitions can be added, none removed."] };
  };
  const command = (values) => tiered("topic", "create", values.name, ...(values.partitions ? ["-p", values.partitions] : []), ...(values.replicas ? ["-r", values.replicas] : []), ...settingsOf(values).flatMap(([name, value]) => ["-c", `${name}=${value}`]));
  const perform = async (values) => {
    await post(path, body(values, false));
    return html`Topic <a href=${`/console/topics/${encodeURIComponent(values.name)}`}>${plain(values.name)}</a> is there.`;
  };
  return html`<${Act} label="Create a topic" fields=${fields} plan=${plan} command=${command} perform=${perform} />`;
}

function settingsOf(values) {
  return values.settings.split(/\s+/).filter(Boolean).map((each) => {
    const at = each.indexOf("=");
    if (at < 1) throw new Error(`${each} is not name=value.`);
    return [each.slice(0, at), each.slice(at + 1)];
  });
}

export function SetTopicConfig({ cluster, topic, config, after }) {
  const path = `/v3/clusters/${cluster}/topics/${encodeURIComponent(topic)}/configs:alter`;
  return html`<${SetConfig} path=${() => path} config=${config} after=${after} words=${topic}
    command=${(values) => (values.reset ? tiered("topic", "alter", topic, "-d", config.name) : tiered("topic", "alter", topic, "-s", `${config.name}=${values.value}`))} />`;
}

// The change of one setting of a topic or of brokers; `scopes` are those for whom it can be set.
export function SetConfig({ path, config, after, words, command, scopes, scope }) {
  const known = config.synonyms.filter((each) => each.source !== config.source || each.value !== config.value);
  const fields = [
    ...(scopes ? [{ name: "scope", label: "For", options: scopes, value: scope }] : []),
    { name: "reset", label: "Return to the default", type: "checkbox" },
    { name: "value", label: `${config.name}: ${config.documentation}`, value: config.value ?? "", shown: (values) => !values.reset },
  ];
  const change = (values) => ({ name: config.name, ...(values.reset ? { operation: "DELETE" } : { operation: "SET", value: values.value }) });
  const plan = async (values) => {
    await post(path(values), { data: [change(values)], validate_only: true });
    const below = known[0];
    const now = `Now it is ${config.value ?? "hidden"} (${config.source.toLowerCase().replaceAll("_", " ")}).`;
    const next = values.reset ? `Then ${below ? `it is ${below.value} (${below.source.toLowerCase().replaceAll("_", " ")})` : "the default is in force"}.` : `Then it is ${values.value}.`;
    return { facts: [now, next] };
  };
  const perform = async (values) => {
    await post(path(values), { data: [change(values)], validate_only: false });
    return `${config.name} is changed.`;
  };
  return html`<${Act} label="Change" title=${`Change ${config.name} of ${words}`} fields=${fields} plan=${plan} command=${command} perform=${perform} after=${after} />`;
}

function AddPartitions({ cluster, topic, storage }) {
  const now = storage.partitions.length;
  const fields = [{ name: "count", label: `Partitions in all (now ${now})`, type: "number", min: now + 1, required: true, value: String(now + 1) }];
  const send = (values, only) => request(`/v3/clusters/${cluster}/topics/${encodeURIComponent(topic)}`, { method: "PATCH", body: { partitions_count: Number(values.count), validate_only: only } });
  const plan = async (values) => {
    await send(values, true);
    return { facts: [`${plural(Number(values.count) - now, "partition")} more. Partitions cannot be removed.`, "Keys may go to other partitions than before: the order of records of one key is lost across this moment."] };
  };
  const perform = async (values) => {
    await send(values, false);
    return `${topic} has ${plural(Number(values.count), "partition")}.`;
  };
  return html`<${Act} label="Add partitions" title=${`Add partitions to ${topic}`} fields=${fields} plan=${plan} command=${(values) => tiered("topic", "add-partitions", topic, "-n", Number(values.count) - now)} perform=${perform} />`;
}

const DELETIONS = [
  ["partition", "Partition", null, true],
  ["log_start_offset", "Begins at", (each) => number(each.log_start_offset), true],
  ["new_start_offset", "Then at", (each) => number(each.new_start_offset), true],
  ["deleted", "Records gone", (each) => number(each.deleted), true],
];

// Returns sentences on the groups that have not read the records that will be gone.
export function unreadFacts(rows, groups) {
  const unread = ({ offsets }) => rows.reduce((total, each) => {
    const at = offsets[each.partition];
    return total + (at === undefined ? 0 : Math.max(0, each.new_start_offset - Math.max(at, each.log_start_offset)));
  }, 0);
  const found = groups.map((each) => [each.group, unread(each)]).filter(([, count]) => count);
  if (!found.length) return ["No group that you may see has any of them unread."];
  const left = found.length - NAMED_MAX;
  return [...found.slice(0, NAMED_MAX).map(([group, count]) => `Group ${group} has not read ${number(count)} of them, and skips them.`), ...(left > 0 ? [`${plural(left, "other group")} too.`] : [])];
}

// Returns the groups that have committed offsets of a topic, as of now: the page may not have them yet.
const requestGroups = async (topic) => (await request(`/tiered/v1/topics/${encodeURIComponent(topic)}/groups`)).groups;

function DeleteRecords({ topic, storage }) {
  const path = `/tiered/v1/topics/${encodeURIComponent(topic)}/records:delete`;
  const at = (values) => values.to === "offset";
  const fields = [
    { name: "to", label: "Delete the records before", options: [["time", "a time (UTC), in all partitions"], ["offset", "an offset of one partition"], ["end", "the end: all records"]] },
    { name: "at", label: "Time (UTC)", ...TIME_INPUT, shown: (values) => values.to === "time" },
    { name: "partition", label: "Partition", options: storage.partitions.map((each) => [String(each.partition), String(each.partition)]), shown: at },
    { name: "offset", label: "New first offset", type: "number", min: 0, required: true, shown: at },
  ];
  const body = (values) => {
    if (values.to === "time") return { before_timestamp: requireTime(values.at) };
    if (values.to === "offset") return { offsets: [{ partition: Number(values.partition), offset: Number(values.offset) }] };
    return { offsets: storage.partitions.filter((each) => each.high_watermark !== null).map((each) => ({ partition: each.partition, offset: each.high_watermark })) };
  };
  const plan = async (values) => {
    const shown = check(await post(path, { ...body(values), validate_only: true }));
    const gone = sum(shown.partitions, "deleted");
    const facts = [`${plural(gone, "record")} will be gone for ever, on the disks and in the bucket, of ${number(records(storage.partitions))}.`];
    return { facts: gone ? [...facts, ...unreadFacts(shown.partitions, await requestGroups(topic))] : facts, rows: shown.partitions, columns: DELETIONS, blocked: gone ? null : "No record lies before that." };
  };
  const command = (values) => tiered("topic", "trim", topic, "-p", values.to === "offset" ? values.partition : "all", "-o", { time: `@${parseTime(values.at)}`, offset: values.offset, end: "end" }[values.to]);
  const perform = async (values, shown) => {
    const offsets = shown.rows.filter((each) => each.deleted).map((each) => ({ partition: each.partition, offset: each.new_start_offset }));
    const done = check(await post(path, { offsets }));
    return `${plural(sum(done.partitions, "deleted"), "record")} deleted.`;
  };
  return html`<${Act} label="Delete records" title=${`Delete records of ${topic}`} fields=${fields} deletes plan=${plan} command=${command} confirm=${topic} perform=${perform} />`;
}

function DeleteTopic({ cluster, topic, storage, setGone }) {
  const rows = storage.partitions;
  const copies = rows.reduce((total, each) => total + (each.local_bytes ?? 0) * each.replicas.length, 0);
  const plan = async () => {
    const groups = await requestGroups(topic);
    return { facts: [
      `${plural(records(rows), "record")} in ${plural(rows.length, "partition")} will be gone for ever.`,
      `${bytes(copies)} on the disks of all replicas and ${bytes(sum(rows, "cold_bytes"))} in the bucket will be free; the objects of the bucket are deleted after a delay.`,
      groups.length ? `${plural(groups.length, "group")} ${groups.length === 1 ? "loses its" : "lose their"} offsets of it: ${groups.slice(0, NAMED_MAX).map((each) => (each.lag ? `${each.group}, which has not read ${plural(each.lag, "record")}` : each.group)).join("; ")}${groups.length > NAMED_MAX ? `, and ${plural(groups.length - NAMED_MAX, "other")}` : ""}.` : "No group that you may see reads it.",
    ] };
  };
  const perform = async () => {
    setGone(true); // the page asks for nothing more, also if it would ask before the reply
    try {
      await request(`/v3/clusters/${cluster}/topics/${encodeURIComponent(topic)}`, { method: "DELETE" });
    } catch (fault) {
      setGone(false);
      throw fault;
    }
    return `Topic ${topic} is deleted.`;
  };
  return html`<${Act} label="Delete topic" title=${`Delete the topic ${topic}`} deletes plan=${plan} confirm=${topic} command=${() => tiered("topic", "delete", topic)} perform=${perform} after=${() => location.assign("/console/topics")} />`;
}

function Compact({ topic }) {
  const path = `/tiered/v1/topics/${encodeURIComponent(topic)}/compaction`;
  const columns = [
    ["partition", "Partition", null, true],
    ["clean_bytes", "Clean", (each) => bytes(each.clean_bytes), true],
    ["dirty_bytes", "Not cleaned yet", (each) => bytes(each.dirty_bytes), true],
    ["cleaned_ms", "Last clean (UTC)", (each) => (each.cleaned_ms ? time(each.cleaned_ms) : "never"), true],
    ["error", "Why not", (each) => each.error ?? each.problem ?? ""],
  ];
  const plan = async () => {
    const shown = await post(path, { validate_only: true });
    const can = shown.partitions.filter((each) => !each.error);
    return { facts: [`${bytes(sum(can, "dirty_bytes"))} are not cleaned yet. Of each key the last record stays; older ones will be gone.`], rows: shown.partitions, columns, blocked: can.length ? null : shown.partitions[0]?.error };
  };
  const perform = async () => {
    check(await post(path, {}));
    return "The cleaners begin as soon as they can.";
  };
  return html`<${Act} label="Compact now" title=${`Clean ${topic} now`} plan=${plan} command=${() => tiered("topic", "compact", topic)} perform=${perform} />`;
}

function Elect({ topic }) {
  const path = `/tiered/v1/topics/${encodeURIComponent(topic)}/elections`;
  const fields = [{ name: "kind", label: "Elect", options: [["PREFERRED", "the preferred leaders"], ["UNCLEAN", "leaders that are not in sync, where there is none: records may be lost"]] }];
  const columns = [
    ["partition", "Partition", null, true],
    ["leader", "Leader now", (each) => (each.leader < 0 ? "none" : each.leader), true],
    ["preferred_leader", "Preferred", null, true],
    ["isr", "In sync", (each) => each.isr.join(", ")],
    ["changes", "Changes", (each) => (each.changes ? "yes" : "no")],
  ];
  const plan = async (values) => {
    const shown = await post(path, { election_type: values.kind, validate_only: true });
    const changed = shown.partitions.filter((each) => each.changes);
    const facts = [`${plural(changed.length, "partition")} of ${shown.partitions.length} will have another leader. Clients find it by themselves.`];
    if (values.kind === "UNCLEAN") facts.push("A leader that is not in sync lacks records that were acknowledged. They will be lost.");
    return { facts, rows: shown.partitions, columns, blocked: changed.length ? null : "No leader would change." };
  };
  const perform = async (values, shown) => {
    const partitions = shown.rows.filter((each) => each.changes).map((each) => each.partition);
    check(await post(path, { election_type: values.kind, partitions }));
    return `${plural(partitions.length, "leader")} elected.`;
  };
  const command = (values, shown) => shown.rows.filter((each) => each.changes).map((each) => `kafka-leader-election.sh --bootstrap-server ${bootstrapBrokers()} --election-type ${values.kind.toLowerCase()} --topic ${topic} --partition ${each.partition}`).join("\n");
  return html`<${Act} label="Elect leaders" title=${`Elect leaders of ${topic}`} fields=${fields} plan=${plan} command=${command} perform=${perform} />`;
}

export const MOVE_COLUMNS = [
  ["partition", "Partition", null, true],
  ["replicas", "On brokers", (each) => each.replicas.join(", ")],
  ["target", "Then on", (each) => each.target.join(", ")],
  ["adding", "Copies to", (each) => each.adding.join(", ") || "–"],
  ["removing", "Removed from", (each) => each.removing.join(", ") || "–"],
];

// Returns sentences on the number of replicas and on the leader, where a move changes them.
export function replicationFacts({ leader, replicas, adding, removing, target }) {
  const now = replicas.length;
  const facts = [];
  if (target.length < now) facts.push(`The partition has fewer replicas: ${target.length} in place of ${now}. Fewer brokers may fail before it stops, or records are lost.`);
  if (target.length > now) facts.push(`The partition has more replicas: ${target.length} in place of ${now}.`);
  if (removing.includes(leader)) facts.push(`The leader changes: broker ${leader} leads now, and loses its replica. Broker ${target[0]} is preferred.`);
  else if (target[0] !== leader) facts.push(`The preferred leader is broker ${target[0]}. Broker ${leader < 0 ? "none" : leader} leads until leaders are elected anew.`);
  else if (!adding.length && !removing.length) facts.push(`Broker ${leader} stays the leader.`);
  return facts;
}

function Move({ topic, storage }) {
  const path = `/tiered/v1/topics/${encodeURIComponent(topic)}/reassignments`;
  const fields = [
    { name: "partition", label: "Partition", options: storage.partitions.map((each) => [String(each.partition), `${each.partition}: on ${brokers(each.replicas)}`]) },
    { name: "replicas", label: "Broker ids, the preferred leader first", required: true, pattern: "[0-9]+( *, *[0-9]+)*", placeholder: "2,3,1" },
  ];
  const wanted = (values) => ({ partition: Number(values.partition), replicas: values.replicas.split(",").map((each) => Number(each)) });
  const plan = async (values) => {
    const shown = await post(path, { partitions: [wanted(values)], validate_only: true });
    const [row] = shown.partitions;
    const local = storage.partitions.find((each) => each.partition === row.partition)?.local_bytes ?? 0;
    return {
      facts: [
        ...replicationFacts(row),
        `${plural(row.adding.length, "replica")} will be copied, ${bytes(local * row.adding.length)} from disk; the records of the bucket stay where they are.`,
        `${plural(row.removing.length, "replica")} will be removed from disk, ${bytes(local * row.removing.length)}, once the copies are in sync.`,
      ],
      rows: shown.partitions,
      columns: MOVE_COLUMNS,
    };
  };
  const perform = async (values) => {
    check(await post(path, { partitions: [wanted(values)] }));
    return "The move has begun. The page of moves shows it until it ends.";
  };
  return html`<${Act} label="Move" title=${`Move a partition of ${topic}`} fields=${fields} plan=${plan} confirm=${topic} command=${(values) => tiered("cluster", "reassign", `${topic}/${values.partition}=${values.replicas.replaceAll(" ", "")}`)} perform=${perform} />`;
}

export function TopicActs({ topic, cluster, storage, setGone }) {
  if (!cluster) return null;
  const all = { topic, cluster, storage, setGone };
  const open = !storage.is_internal;
  return html`<div class="acts" role="group" aria-label="Acts">
    ${open && html`<${AddPartitions} ...${all} />`}<${Move} ...${all} /><${Elect} ...${all} />
    ${storage.cleanup_policy.includes("compact") && html`<${Compact} ...${all} />`}
    ${open ? html`<${DeleteRecords} ...${all} /><${DeleteTopic} ...${all} />` : html`<span class="dim">The topic is internal: brokers keep groups or transactions in it. It cannot be deleted, extended or cut.</span>`}</div>`;
}
