// Curves of what happens while the page is open.
import { html } from "./vendor/htm-preact-3.1.1.js";

const [WIDTH, HEIGHT, TOP] = [600, 100, 8];
export const WINDOW_MS = 30_000;

// Returns what a counter grew by in a second, over the looks of the last half minute: a producer that writes every few
// seconds has one rate. A counter that began anew has the rate since then; null without two looks. A look: [ms, count].
export function rateOver(looks) {
  const [now, count] = looks.at(-1) ?? [];
  let first = looks.length - 1;
  while (first > 0 && now - looks[first - 1][0] <= WINDOW_MS && looks[first - 1][1] <= looks[first][1]) first -= 1;
  return first < looks.length - 1 ? ((count - looks[first][1]) * 1000) / (now - looks[first][0]) : null;
}

// Each line: [name, points], a point: [ms, value]. `format` shows a value. All lines have one scale from 0. The room of the
// curve is there before its first points. `waits` is false for a curve below another one, which says so already.
export function Curve({ lines, format, waits = true }) {
  const all = lines.flatMap(([, points]) => points);
  const times = all.map(([ms]) => ms);
  const [first, last] = [Math.min(...times), Math.max(...times)];
  const drawn = all.length > 1 && last > first;
  const most = Math.max(0, ...all.map(([, value]) => value));
  const place = ([ms, value]) => `${((ms - first) / (last - first)) * WIDTH},${HEIGHT - (value / (most || 1)) * (HEIGHT - TOP)}`;
  const words = lines.map(([name, points]) => `${name}: ${points.length ? format(points.at(-1)[1]) : "nothing"} now`).join(", ");
  return html`<figure class="chart">
    <div class="scale"><span>${most > 0 && format(most)}</span><span>${most > 0 && format(most / 2)}</span><span>${drawn && format(0)}</span></div>
    <svg class="curve" viewBox=${`0 0 ${WIDTH} ${HEIGHT + 4}`} preserveAspectRatio="none" role="img" aria-label=${words}>
      ${most > 0 && [TOP, (HEIGHT + TOP) / 2, HEIGHT].map((y) => html`<line class="grid" x1="0" x2=${WIDTH} y1=${y} y2=${y} />`)}
      ${drawn && lines.map(([, points], at) => html`<polyline class=${`line-${at}`} points=${points.map(place).join(" ")} />`)}</svg>
    <figcaption>${drawn || !waits ? "" : html`<span class="dim">The curve begins with the next look, in a few seconds.</span>`}
      ${drawn && html`<span class="dim">the last ${Math.round((last - first) / 1000)} s</span>`}
      ${lines.map(([name, points], at) => html`<span><i class=${`line-${at}`}></i>${name} ${points.length ? format(points.at(-1)[1]) : "–"}</span>`)}</figcaption></figure>`;
}
