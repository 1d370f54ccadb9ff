// The picture of the tiers: each partition as a bar over its offsets or its time, coloured by where the records are.
import { html } from "./vendor/htm-preact-3.1.1.js";
import { bytes, number, plural, time } from "./format.js";

const WIDTH = 1000;

// Returns the stretches of a partition: [kind, first offset, offset behind the last one], in order.
export function stretches(partition) {
  const { log_start_offset: start, high_watermark: end, local_start_offset: local, cold_end_offset: cold } = partition;
  const diskFrom = Math.min(Math.max(local ?? start, start), end);
  const bucketTo = Math.min(Math.max(cold ?? start, start), end);
  const found = [];
  const add = (kind, from, to) => to > from && found.push([kind, from, to]);
  add("bucket", start, Math.min(diskFrom, bucketTo));
  add("both", diskFrom, bucketTo);
  add("disk", Math.max(diskFrom, bucketTo), end);
  return found;
}

const WORDS = { bucket: "in the bucket", both: "on disk and in the bucket", disk: "on disk alone" };

export function Legend({ table, cleaned }) {
  return html`<ul class="legend" aria-label="Colours">
    ${Object.entries(WORDS).map(([kind, words]) => html`<li><i class=${kind}></i>${words}</li>`)}
    <li title="Readers of committed records stop at the last stable offset: where the oldest open transaction begins"><i class="open"></i>behind an open transaction</li>
    ${table && html`<li><i class="loaded"></i>loaded into the Delta table <a href=${`/console/tables/${encodeURIComponent(table)}`}>${table}</a></li>`}
    ${cleaned && html`<li><i class="cleaned"></i>cleaned by compaction</li>`}
    <li><i class="position"></i>position of a group</li></ul>`;
}

// Returns the value at `x` on the line through `points`, which rise in both coordinates; `from` and `to` choose the
// coordinate of `x` and of the value.
export function along(points, x, from, to) {
  const last = points.length - 1;
  if (x <= points[0][from]) return points[0][to];
  if (x >= points[last][from]) return points[last][to];
  const at = points.findIndex((each) => each[from] >= x);
  const [before, after] = [points[at - 1], points[at]];
  const share = (x - before[from]) / (after[from] - before[from] || 1);
  return before[to] + share * (after[to] - before[to]);
}

// Returns the offsets and times of a partition as points that rise, null if it has no marks of time.
function pointsOf({ log_start_offset: start, time_marks: marks }) {
  if (!marks?.length) return null;
  return marks[0][0] > start ? [[start, marks[0][1]], ...marks] : marks;
}

// Returns the first and the last time of all partitions, so that their bars have one scale; null without a time.
export function rangeOf(partitions) {
  const ends = partitions.flatMap((each) => {
    const points = pointsOf(each);
    return points ? [along(points, each.log_start_offset, 0, 1), along(points, each.high_watermark, 0, 1)] : [];
  });
  return ends.length ? [Math.min(...ends), Math.max(...ends)] : null;
}

// The scale of a bar: `place` returns where an offset is, from 0 to WIDTH, and `offset` what is at a share of the bar.
// Over time, marks of the partition say how old the records below an offset are. Null if there are no such marks.
function scaleOf(partition, byTime, range) {
  const { log_start_offset: start, high_watermark: end } = partition;
  const within = (offset) => Math.min(Math.max(offset, start), end);
  if (!byTime) {
    const span = Math.max(1, end - start);
    return { place: (offset) => ((within(offset) - start) / span) * WIDTH, offset: (share) => start + Math.floor(share * span), ends: [number(start), number(end)] };
  }
  const points = pointsOf(partition);
  if (!points || !range) return null;
  const [first, last] = range;
  const span = Math.max(1, last - first);
  const offset = (share) => Math.floor(along(points, first + share * span, 1, 0));
  return { place: (at) => ((along(points, within(at), 0, 1) - first) / span) * WIDTH, offset: (share) => within(offset(share)), ends: [time(first), time(last)] };
}

const LABEL_ROWS = 3;
const LETTERS_MAX = 24;
const LETTER = 11;

// Returns the names of groups beside their marks: [group, place, row]. A name has its own room: those that get none are
// left out.
export function labelRows(marks) {
  const ends = [];
  const found = [];
  for (const [group, at] of [...marks].sort((a, b) => a[1] - b[1])) {
    const width = (Math.min(group.length, LETTERS_MAX) + 1) * LETTER;
    const from = at > WIDTH - width ? at - width : at;
    const row = [...Array(LABEL_ROWS).keys()].find((each) => (ends[each] ?? -1) <= from);
    if (row === undefined) continue;
    ends[row] = from + width;
    found.push([group, at, row, from < at]);
  }
  return found;
}

function Labels({ marks }) {
  const shown = labelRows(marks);
  if (!shown.length) return null;
  const left = marks.length - shown.length;
  const side = (at, before) => (before ? { right: `${100 - (100 * at) / WIDTH}%` } : { left: `${(100 * at) / WIDTH}%` });
  return html`<div class="names" style=${{ height: `${16 * (1 + Math.max(...shown.map(([, , row]) => row)))}px` }}>
    ${shown.map(([group, at, row, before]) => html`<a href=${`/console/groups/${encodeURIComponent(group)}`} title=${group} style=${{ ...side(at, before), top: `${16 * row}px` }}>${group.length > LETTERS_MAX ? `${group.slice(0, LETTERS_MAX - 1)}…` : group}</a>`)}</div>
    ${left > 0 && html`<p class="dim names-left">${plural(left, "group")} more at these places.</p>`}`;
}

// `loaded` is the next offset that a load takes. `onPick` gets the offset at which the bar was clicked; `picked` are the ends of the segment that is shown.
export function TierBar({ partition, positions = [], loaded, byTime = false, range, onPick, picked }) {
  const { log_start_offset: start, high_watermark: end, last_stable_offset: stable } = partition;
  if (start === null || start === undefined) return html`<p class="dim">${partition.error ?? "Its leader does not reply."}</p>`;
  const scale = scaleOf(partition, byTime, range);
  if (!scale) return html`<p class="dim">No record has a time.</p>`;
  const x = scale.place;
  const box = (from, to) => ({ x: x(from), width: Math.max(1, x(to) - x(from)) });
  const parts = stretches(partition);
  const words = parts.map(([kind, from, to]) => `${plural(to - from, "offset")} ${WORDS[kind]}`).join(", ") || "no records";
  const loadedTo = Math.min(loaded ?? start, end);
  const cleanedTo = Math.min(partition.cleaned_to_offset ?? start, end);
  const cleanedWords = cleanedTo > start ? `, cleaned by compaction up to ${number(cleanedTo)}` : "";
  const tableWords = loadedTo > start ? `, loaded into its table up to ${number(loadedTo)}` : "";
  const clicked = (event) => {
    const { left, width } = event.currentTarget.getBoundingClientRect();
    if (end > start) onPick?.(Math.min(end - 1, Math.max(start, scale.offset((event.clientX - left) / width))));
  };
  const pressed = (event) => {
    const [from, to] = picked ?? [start, start];
    const next = { Enter: from, " ": from, ArrowRight: to, ArrowLeft: from - 1, Home: start, End: end - 1 }[event.key];
    if (next === undefined || end <= start) return;
    event.preventDefault();
    onPick?.(Math.min(end - 1, Math.max(start, next)));
  };
  const marks = positions.map(([group, offset]) => [group, Math.min(WIDTH - 3, x(offset))]);
  return html`<${Labels} marks=${marks} /><svg class="tiers" viewBox=${`0 0 ${WIDTH} 30`} preserveAspectRatio="none" role="button" tabindex="0" onClick=${clicked} onKeyDown=${pressed} aria-label=${`Partition ${partition.partition}: ${words}${tableWords}${cleanedWords}`}>
    <rect class="empty" x="0" y="6" width=${WIDTH} height="18" />
    ${parts.map(([kind, from, to]) => html`<rect class=${kind} ...${box(from, to)} y="6" height="18">
      <title>${`${number(from)} to ${number(to - 1)}: ${WORDS[kind]}`}</title></rect>`)}
    ${stable !== null && stable < end && html`<rect class="open" ...${box(stable, end)} y="6" height="18">
      <title>${`from ${number(stable)} on: transactions are open`}</title></rect>`}
    ${loadedTo > start && html`<line class="loaded" x1=${x(start)} x2=${x(loadedTo)} y1="27" y2="27">
      <title>${`${number(start)} to ${number(loadedTo - 1)}: loaded into the Delta table`}</title></line>`}
    ${cleanedTo > start && html`<line class="cleaned" x1=${x(start)} x2=${x(cleanedTo)} y1="3" y2="3">
      <title>${`${number(start)} to ${number(cleanedTo - 1)}: cleaned by compaction`}</title></line>`}
    ${picked && html`<rect class="picked" ...${box(...picked)} y="3" height="24" />`}
    ${positions.map(([group, offset]) => html`<rect class="position" x=${Math.min(WIDTH - 3, x(offset))} y="0" width="3" height="30">
      <title>${`${group}: ${number(offset)}, ${plural(Math.max(0, end - offset), "offset")} behind`}</title></rect>`)}
  </svg>
  <div class="ends"><span>${scale.ends[0]}</span><span class="dim">${bytes(partition.local_bytes)} on the leader's disk · ${bytes(partition.cold_bytes)} in the bucket</span><span>${scale.ends[1]}</span></div>`;
}
