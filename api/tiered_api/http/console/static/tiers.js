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

export function Legend({ table }) {
  return html`<ul class="legend" aria-label="Colours">
    ${Object.entries(WORDS).map(([kind, words]) => html`<li><i class=${kind}></i>${words}</li>`)}
    <li><i class="open"></i>beyond the last stable offset</li>
    ${table && html`<li><i class="loaded"></i>loaded into the Delta table <a href=${`/console/tables/${encodeURIComponent(table)}`}>${table}</a></li>`}
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

// The scale of a bar: `place` returns where an offset is, from 0 to WIDTH, and `offset` what is at a share of the bar.
// Over time, marks of the partition say how old the records below an offset are. Null if there are no such marks.
function scaleOf(partition, byTime) {
  const { log_start_offset: start, high_watermark: end, time_marks: marks } = partition;
  const within = (offset) => Math.min(Math.max(offset, start), end);
  if (!byTime) {
    const span = Math.max(1, end - start);
    return { place: (offset) => ((within(offset) - start) / span) * WIDTH, offset: (share) => start + Math.floor(share * span), ends: [number(start), number(end)] };
  }
  if (!marks?.length) return null;
  const points = marks[0][0] > start ? [[start, marks[0][1]], ...marks] : marks;
  const [first, last] = [along(points, start, 0, 1), along(points, end, 0, 1)];
  const span = Math.max(1, last - first);
  const offset = (share) => Math.floor(along(points, first + share * span, 1, 0));
  return { place: (at) => ((along(points, within(at), 0, 1) - first) / span) * WIDTH, offset: (share) => within(offset(share)), ends: [time(first), time(last)] };
}

// `loaded` is the next offset that a load takes. `onPick` gets the offset at which the bar was clicked; `picked` are the ends of the segment that is shown.
export function TierBar({ partition, positions = [], loaded, byTime = false, onPick, picked }) {
  const { log_start_offset: start, high_watermark: end, last_stable_offset: stable } = partition;
  if (start === null || start === undefined) return html`<p class="dim">${partition.error ?? "Its leader does not reply."}</p>`;
  const scale = scaleOf(partition, byTime);
  if (!scale) return html`<p class="dim">No record has a time.</p>`;
  const x = scale.place;
  const box = (from, to) => ({ x: x(from), width: Math.max(1, x(to) - x(from)) });
  const parts = stretches(partition);
  const words = parts.map(([kind, from, to]) => `${plural(to - from, "offset")} ${WORDS[kind]}`).join(", ") || "no records";
  const loadedTo = Math.min(loaded ?? start, end);
  const tableWords = loadedTo > start ? `, loaded into its table up to ${number(loadedTo)}` : "";
  const clicked = (event) => {
    const { left, width } = event.currentTarget.getBoundingClientRect();
    if (end > start) onPick?.(Math.min(end - 1, Math.max(start, scale.offset((event.clientX - left) / width))));
  };
  return html`<svg class="tiers" viewBox=${`0 0 ${WIDTH} 30`} preserveAspectRatio="none" role="img" onClick=${clicked} aria-label=${`Partition ${partition.partition}: ${words}${tableWords}`}>
    <rect class="empty" x="0" y="6" width=${WIDTH} height="18" />
    ${parts.map(([kind, from, to]) => html`<rect class=${kind} ...${box(from, to)} y="6" height="18">
      <title>${`${number(from)} to ${number(to - 1)}: ${WORDS[kind]}`}</title></rect>`)}
    ${stable !== null && stable < end && html`<rect class="open" ...${box(stable, end)} y="6" height="18">
      <title>${`from ${number(stable)} on: transactions are open`}</title></rect>`}
    ${loadedTo > start && html`<line class="loaded" x1=${x(start)} x2=${x(loadedTo)} y1="27" y2="27">
      <title>${`${number(start)} to ${number(loadedTo - 1)}: loaded into the Delta table`}</title></line>`}
    ${picked && html`<rect class="picked" ...${box(...picked)} y="3" height="24" />`}
    ${positions.map(([group, offset]) => html`<rect class="position" x=${Math.min(WIDTH - 3, x(offset))} y="0" width="3" height="30">
      <title>${`${group}: ${number(offset)}, ${plural(Math.max(0, end - offset), "offset")} behind`}</title></rect>`)}
  </svg>
  <div class="ends"><span>${scale.ends[0]}</span><span class="dim">${bytes(partition.local_bytes)} on disk · ${bytes(partition.cold_bytes)} in the bucket</span><span>${scale.ends[1]}</span></div>`;
}
