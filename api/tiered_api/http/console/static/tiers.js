// The picture of the tiers: each partition as a bar over its offsets, coloured by where the records are.
import { html } from "./vendor/htm-preact-3.1.1.js";
import { bytes, number, plural } from "./format.js";

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

export function Legend() {
  return html`<ul class="legend" aria-label="Colours">
    ${Object.entries(WORDS).map(([kind, words]) => html`<li><i class=${kind}></i>${words}</li>`)}
    <li><i class="open"></i>beyond the last stable offset</li>
    <li><i class="position"></i>position of a group</li></ul>`;
}

export function TierBar({ partition, positions = [] }) {
  const { log_start_offset: start, high_watermark: end, last_stable_offset: stable } = partition;
  if (start === null || start === undefined) return html`<p class="dim">${partition.error ?? "Its leader does not reply."}</p>`;
  const span = Math.max(1, end - start);
  const x = (offset) => ((Math.min(Math.max(offset, start), end) - start) / span) * WIDTH;
  const parts = stretches(partition);
  const words = parts.map(([kind, from, to]) => `${plural(to - from, "offset")} ${WORDS[kind]}`).join(", ") || "no records";
  return html`<svg class="tiers" viewBox=${`0 0 ${WIDTH} 30`} preserveAspectRatio="none" role="img" aria-label=${`Partition ${partition.partition}: ${words}`}>
    <rect class="empty" x="0" y="6" width=${WIDTH} height="18" />
    ${parts.map(([kind, from, to]) => html`<rect class=${kind} x=${x(from)} y="6" width=${Math.max(1, x(to) - x(from))} height="18">
      <title>${`${number(from)} to ${number(to - 1)}: ${WORDS[kind]}`}</title></rect>`)}
    ${stable !== null && stable < end && html`<rect class="open" x=${x(stable)} y="6" width=${Math.max(1, x(end) - x(stable))} height="18">
      <title>${`from ${number(stable)} on: transactions are open`}</title></rect>`}
    ${positions.map(([group, offset]) => html`<rect class="position" x=${Math.min(WIDTH - 3, x(offset))} y="0" width="3" height="30">
      <title>${`${group}: ${number(offset)}, ${plural(Math.max(0, end - offset), "offset")} behind`}</title></rect>`)}
  </svg>
  <div class="ends"><span>${number(start)}</span><span class="dim">${bytes(partition.local_bytes)} on disk · ${bytes(partition.cold_bytes)} in the bucket</span><span>${number(end)}</span></div>`;
}
