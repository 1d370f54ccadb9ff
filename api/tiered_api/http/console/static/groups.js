// Consumer groups: their members, how far behind they are, in records and in seconds, and how that changes.
import { html, useEffect, useState } from "./vendor/htm-preact-3.1.1.js";
import { Act, tiered } from "./act.js";
import { POLL_SECONDS, request, usePoll } from "./api.js";
import { Curve } from "./curve.js";
import { TIME_INPUT, groupState, number, parseTime, plural, requireTime, span, time } from "./format.js";
import { Loading, Table, Title, useAddress } from "./parts.js";
import { Why } from "./why.js";

const KEPT = 150;
const TARGETS = [["earliest", "the first record"], ["latest", "the end"], ["timestamp", "a time (UTC)"], ["offset", "an offset of one partition"]];

const since = (each) => (each.oldest_unread_ms === null ? "–" : html`<span title=${`${time(each.oldest_unread_ms)} UTC`}>${span(each.seconds)}</span>`);

export function GroupsPage() {
  const [view, change] = useAddress({ search: "" });
  const groups = usePoll(`/tiered/v1/groups?contains=${encodeURIComponent(view.search)}`, 5);
  const rows = [...(groups.value?.groups ?? [])].sort((a, b) => (b.seconds ?? -1) - (a.seconds ?? -1));
  const left = groups.value?.groups_left_out;
  const columns = [
    ["group", "Group", (each) => html`<a href=${`/console/groups/${encodeURIComponent(each.group)}`}>${each.group}</a>`],
    ["state", "State", (each) => groupState(each.state)],
    ["topics", "Topics", (each) => each.topics.map((topic, at) => html`${at ? ", " : ""}<a href=${`/console/topics/${encodeURIComponent(topic)}`}>${topic}</a>`)],
    ["lag", "Records behind", (each) => number(each.lag), true],
    ["seconds", "Behind by", since, true],
    ["oldest_unread_ms", "Oldest unread record (UTC)", (each) => (each.oldest_unread_ms === null ? "–" : time(each.oldest_unread_ms)), true],
  ];
  return html`<${Title} words="Groups"><span class="dim">${groups.value && plural(rows.length, "group")}</span><//>
    <div class="tools"><label>Search <input type="search" value=${view.search} onInput=${(event) => change({ search: event.target.value })} /></label></div>
    <${Loading} state=${groups} />
    ${left > 0 && html`<p class="dim">The lag of ${plural(left, "group")} is not looked up: search for a part of the name.</p>`}
    ${groups.value && html`<${Table} name="Groups" rows=${rows} columns=${columns} empty=${view.search ? "No group has this in its name." : "There are no groups that you may see."} />`}`;
}

// The lag while the page is open, as [ms, records, seconds, time of the oldest unread record].
function useTrend(found) {
  const [points, setPoints] = useState([]);
  useEffect(() => {
    if (found) setPoints((were) => [...were, [Date.now(), found.lag, found.seconds ?? 0, found.oldest_unread_ms]].slice(-KEPT));
  }, [found]);
  return points;
}

function Trend({ points }) {
  if (points.length < 2) return html`<p class="dim">${" "}</p>`;
  const change = points.at(-1)[1] - points[0][1];
  const seconds = Math.round((points.at(-1)[0] - points[0][0]) / 1000);
  const words = change ? `${plural(Math.abs(change), "record")} ${change > 0 ? "more" : "fewer"} behind than ${seconds} s ago.` : "The lag in records does not change.";
  const older = points.at(-1)[2] - points[0][2];
  const stays = points.at(-1)[3] === points[0][3] && change >= 0;
  const also = !older ? "" : older < 0 ? ` In time it is ${span(-older)} less.` : ` In time it grew by ${span(older)}${stays ? ": the oldest unread record is the same, so nobody reads it" : ""}.`;
  return html`<p class="dim">${words}${also}</p>`;
}

const MOVES = [
  ["topic", "Topic"],
  ["partition", "Partition", null, true],
  ["current_offset", "Now", (each) => number(each.current_offset), true],
  ["new_offset", "Then", (each) => number(each.new_offset), true],
  ["again", "Read again", (each) => number(each.again), true],
  ["skipped", "Skipped", (each) => number(each.skipped), true],
];

// Returns the body that asks for a reset, without the offsets that the broker finds.
function resetBody(values) {
  if (values.to === "offset") return { offsets: [{ topic: values.topic, partition: Number(values.partition), offset: Number(values.offset) }] };
  const body = { to: values.to };
  if (values.to === "timestamp") body.timestamp = requireTime(values.at);
  if (values.topic) body.topics = [values.topic];
  return body;
}

function resetCommand(group, values) {
  if (values.to === "offset") return `echo ${values.topic} ${values.partition} ${values.offset} | ${tiered("group", "seek", group, "--to-file", "/dev/stdin")}`;
  const to = { earliest: "start", latest: "end", timestamp: `@${parseTime(values.at)}` }[values.to];
  return tiered("group", "seek", group, "--to", to, ...(values.topic ? ["--topics", values.topic] : []));
}

function Reset({ group, found }) {
  const path = `/tiered/v1/groups/${encodeURIComponent(group)}/offsets`;
  const topics = [...new Set(found.partitions.map((each) => each.topic))];
  const fields = [
    { name: "to", label: "Go to", options: TARGETS },
    { name: "topic", label: "Topic", options: [["", "all topics of the group"], ...topics.map((each) => [each, each])], shown: (values) => values.to !== "offset" },
    { name: "topic", label: "Topic", options: topics.map((each) => [each, each]), value: "", shown: (values) => values.to === "offset" },
    { name: "partition", label: "Partition", type: "number", min: 0, required: true, value: "0", shown: (values) => values.to === "offset" },
    { name: "offset", label: "Offset", type: "number", min: 0, required: true, shown: (values) => values.to === "offset" },
    { name: "at", label: "Time (UTC)", ...TIME_INPUT, shown: (values) => values.to === "timestamp" },
  ];
  const plan = async (values) => {
    const wanted = values.to === "offset" && !values.topic ? { ...values, topic: topics[0] } : values;
    const shown = await request(path, { method: "POST", body: { ...resetBody(wanted), validate_only: true } });
    const facts = [
      shown.again ? `${plural(shown.again, "record")} will be read again.` : "No record will be read again.",
      shown.skipped ? `${plural(shown.skipped, "record")} will be skipped, and never read by this group.` : "No record will be skipped.",
    ];
    const blocked = ["Empty", "Dead"].includes(shown.state) ? null : "The group has members: stop them first. Offsets of members cannot be changed from outside.";
    return { facts, blocked, rows: shown.partitions, columns: MOVES, command: resetCommand(group, wanted) };
  };
  const perform = async (values, shown) => {
    const offsets = shown.rows.map((each) => ({ topic: each.topic, partition: each.partition, offset: each.new_offset }));
    const done = await request(path, { method: "POST", body: { offsets } });
    const refused = done.partitions.filter((each) => each.error);
    if (refused.length) throw new Error(`${plural(refused.length, "partition")} not reset. ${refused[0].topic}/${refused[0].partition}: ${refused[0].error}`);
    return `${plural(done.partitions.length, "offset")} committed.`;
  };
  return html`<${Act} label="Reset offsets" title=${`Reset the offsets of ${group}`} fields=${fields} plan=${plan} command=${(_, shown) => shown.command} perform=${perform} />`;
}

function Delete({ group, found, setGone }) {
  const committed = found.partitions.filter((each) => each.current_offset !== null);
  const plan = async () => ({
    facts: [`${plural(committed.length, "committed offset")} will be gone. Records stay.`, "A consumer that joins under this name later begins where its auto.offset.reset says."],
    blocked: found.members.length ? `The group has ${plural(found.members.length, "member")}: stop them first.` : null,
  });
  const perform = async () => {
    setGone(true);
    try {
      await request(`/tiered/v1/groups/${encodeURIComponent(group)}`, { method: "DELETE" });
    } catch (fault) {
      setGone(false);
      throw fault;
    }
    return `Group ${group} is deleted.`;
  };
  const leave = () => location.assign("/console/groups");
  return html`<${Act} label="Delete group" title=${`Delete the group ${group}`} deletes plan=${plan} confirm=${group} command=${() => tiered("group", "delete", group)} perform=${perform} after=${leave} />`;
}

export function GroupPage({ group }) {
  const [gone, setGone] = useState(false);
  const lag = usePoll(`/tiered/v1/groups/${encodeURIComponent(group)}`, gone ? null : POLL_SECONDS);
  const found = lag.value;
  const points = useTrend(found);
  const lagColumns = [
    ["topic", "Topic", (each) => html`<a href=${`/console/topics/${encodeURIComponent(each.topic)}`}>${each.topic}</a>`],
    ["partition", "Partition", null, true],
    ["current_offset", "Committed", (each) => (each.current_offset === null ? "–" : html`<a href=${`/console/topics/${encodeURIComponent(each.topic)}/messages?partition=${each.partition}&from=offset&at=${each.current_offset}`}>${number(each.current_offset)}</a>`), true],
    ["log_end_offset", "End", (each) => number(each.log_end_offset), true],
    ["lag", "Records behind", (each) => number(each.lag), true],
    ["seconds", "Behind by", since, true],
    ["client_id", "Read by", (each) => each.client_id || html`<span class="dim">nobody</span>`],
  ];
  const memberColumns = [
    ["client_id", "Client"],
    ["host", "Host"],
    ["partitions", "Reads", (each) => each.partitions.join(", ") || "nothing"],
    ["instance_id", "Static id", (each) => each.instance_id ?? "–"],
    ["member_id", "Member", (each) => html`<code>${each.member_id}</code>`],
  ];
  return html`<${Title} kind="Group" words=${group}>${found && html`<${Reset} group=${group} found=${found} /><${Delete} group=${group} found=${found} setGone=${setGone} />`}<//>
    <${Loading} state=${lag} />
    ${found && html`<dl class="figures">
      <div><dt>State</dt><dd>${groupState(found.state)}</dd></div>
      <div><dt>Members</dt><dd>${number(found.members.length)}</dd></div>
      <div><dt>Records behind</dt><dd>${number(found.lag)}</dd></div>
      <div><dt>Behind by</dt><dd>${found.seconds === null ? (found.lag ? "–" : "nothing") : span(found.seconds)}</dd></div>
      ${found.oldest_unread_ms !== null && html`<div><dt>Oldest unread record (UTC)</dt><dd>${time(found.oldest_unread_ms).slice(0, 19)}</dd></div>`}</dl>
      <${Why} path=${`/tiered/v1/groups/${encodeURIComponent(group)}`} what="this group" />
      <h2>Lag</h2>
      <${Curve} lines=${[["records behind", points.map(([ms, records]) => [ms, records])]]} format=${(count) => number(Math.round(count))} />
      <${Curve} waits=${false} lines=${[["behind by", points.map(([ms, , seconds]) => [ms, seconds])]]} format=${span} />
      <${Trend} points=${points} />
      ${found.times_missing > 0 && html`<p class="dim">The times of ${plural(found.times_missing, "record")} are not read yet.</p>`}
      <${Table} name="Lag by partition" rows=${found.partitions} columns=${lagColumns} empty="The group has committed no offset that you may see." />
      <h2>Members</h2>
      <${Table} name="Members" rows=${found.members} columns=${memberColumns} empty="Nobody reads in this group now." />`}`;
}
