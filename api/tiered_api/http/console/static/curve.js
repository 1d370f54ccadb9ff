// Curves of what happens while the page is open.
import { html } from "./vendor/htm-preact-3.1.1.js";

const [WIDTH, HEIGHT, TOP] = [600, 100, 8];

// Each line: [name, points], a point: [ms, value]. `format` shows a value. All lines have one scale from 0.
export function Curve({ lines, format }) {
  const all = lines.flatMap(([, points]) => points);
  const times = all.map(([ms]) => ms);
  const [first, last] = [Math.min(...times), Math.max(...times)];
  if (all.length < 2 || last === first) return html`<p class="dim">The curve begins with the next look, in a few seconds.</p>`;
  const most = Math.max(...all.map(([, value]) => value)) || 1;
  const place = ([ms, value]) => `${((ms - first) / (last - first)) * WIDTH},${HEIGHT - (value / most) * (HEIGHT - TOP)}`;
  const words = lines.map(([name, points]) => `${name}: ${points.length ? format(points.at(-1)[1]) : "nothing"} now`).join(", ");
  return html`<figure class="chart">
    <svg class="curve" viewBox=${`0 0 ${WIDTH} ${HEIGHT + 4}`} preserveAspectRatio="none" role="img" aria-label=${words}>
      ${lines.map(([, points], at) => html`<polyline class=${`line-${at}`} points=${points.map(place).join(" ")} />`)}</svg>
    <figcaption><span class="dim">top ${format(most)}, ${Math.round((last - first) / 1000)} s</span>
      ${lines.map(([name, points], at) => html`<span><i class=${`line-${at}`}></i>${name} ${points.length ? format(points.at(-1)[1]) : "–"}</span>`)}</figcaption></figure>`;
}
