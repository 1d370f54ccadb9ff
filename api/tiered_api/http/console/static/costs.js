// What the bucket was used for by day, and what that costs by the prices that the operator wrote down.
import { html } from "./vendor/htm-preact-3.1.1.js";
import { usePoll } from "./api.js";
import { bytes, number, plural, time } from "./format.js";
import { ErrorBox, Loading, Table, Title, useAddress } from "./parts.js";

const SECONDS = 60;
const CLASSES = [["get", "Reads"], ["put", "Small writes"], ["upload", "Segments"], ["list", "Lists"], ["delete", "Deletes"]];
const DAYS = ["8", "31"];

// Costs are mostly cents: as many digits as the amount needs.
export function money(amount, currency) {
  if (amount === null || amount === undefined) return "–";
  const digits = amount === 0 || amount >= 1 ? 2 : Math.min(6, 1 - Math.floor(Math.log10(amount)) + 1);
  return `${amount.toFixed(Math.max(2, digits))} ${currency}`;
}

const HOUR_MS = 3_600_000;

// Returns the hours of a day on which brokers counted, from the first that any of them has: of today, those until now.
export function countedHours(day, brokers, now) {
  const start = Date.parse(day.day);
  const first = Math.min(...brokers.map((each) => each.since_ms ?? Infinity));
  return Math.max(1, (Math.min(now, start + 24 * HOUR_MS) - Math.max(first, start)) / HOUR_MS);
}

const sum = (day, name) => Object.values(day.classes).reduce((total, each) => total + each[name], 0);
// A day on which nobody counted has dashes, and no zeros.
const isCounted = (day) => sum(day, "requests") > 0 || day.stored_gib_hours > 0;

function Bill({ day, currency, stored, hours }) {
  const rows = CLASSES.map(([verb, words]) => ({ words, ...day.classes[verb] }));
  const columns = [
    ["words", "Class"],
    ["requests", "Requests", (each) => number(each.requests), true],
    ["bytes", "Bytes", (each) => bytes(each.bytes), true],
    ["cost", "Cost", (each) => money(each.cost, currency), true],
  ];
  const kept = { words: `Stored, on average of ${plural(Math.round(hours), "hour")}`, requests: null, bytes: stored, cost: day.stored_cost };
  return html`<${Table} name=${`Use of the bucket on ${day.day}`} rows=${[...rows, kept]} columns=${columns} />`;
}

export function CostsPage() {
  const [view, change] = useAddress({ days: DAYS[0], day: "" });
  const state = usePoll(`/tiered/v1/costs?days=${encodeURIComponent(view.days)}`, SECONDS);
  const found = state.value;
  const currency = found?.prices?.currency ?? "";
  const picked = found && (found.days.find((each) => each.day === view.day) ?? found.days[0]);
  const hours = (day) => countedHours(day, found.brokers, Date.now());
  const stored = (day) => (day.stored_gib_hours * 2 ** 30) / hours(day);
  const counted = (show) => (each) => (isCounted(each) ? show(each) : "–");
  const columns = [
    ["day", "Day (UTC)", (each) => html`<button class="sort" aria-pressed=${each === picked} onClick=${() => change({ day: each.day })}>${each.day}</button>${each === found.days[0] && html` <span class="dim">until now</span>`}`],
    ["requests", "Requests", counted((each) => number(sum(each, "requests"))), true],
    ["bytes", "Bytes moved", counted((each) => bytes(sum(each, "bytes"))), true],
    ["stored_gib_hours", "Stored, on average of the hours counted", counted((each) => bytes(stored(each))), true],
    ["cost", "Cost", (each) => money(each.cost, currency), true],
  ];
  return html`<${Title} words="Costs" />
    <${Loading} state=${state} />
    ${found && html`
      <dl class="figures">
        <div><dt>Yesterday</dt><dd>${money(found.days[1]?.cost, currency)}</dd></div>
        <div><dt>Today until now</dt><dd>${money(found.days[0].cost, currency)}</dd></div>
        <div><dt>${plural(found.days.length, "day")}</dt><dd>${found.prices ? money(found.days.reduce((total, each) => total + each.cost, 0), currency) : "–"}</dd></div>
        ${found.prices && html`<div><dt>Prices as of</dt><dd>${found.prices.as_of}</dd></div>`}</dl>
      ${found.prices ? html`<p class="dim">The prices are from ${found.prices.source}. The sums have the requests of these brokers for their records. Those of <code>tiered load</code>, of other commands on the store and for tables are not in them.</p>`
        : html`<p>Use is counted, and its cost is not known: ${found.problem}. Write the prices of your store into a file, and set <code>tiered.console.prices</code> of the brokers to it.</p>`}
      ${found.brokers.filter((each) => each.problem).map((each) => html`<${ErrorBox} key=${each.node_id} error=${{ message: `The use of broker ${each.node_id} is missing: ${each.problem}` }} />`)}
      <div class="tools"><label>Days <select onChange=${(event) => change({ days: event.target.value })}>
        ${DAYS.map((each) => html`<option value=${each} selected=${each === view.days}>${each}</option>`)}</select></label></div>
      <${Table} name="Days" rows=${found.days} columns=${columns} />
      <h2>${picked.day}${picked === found.days[0] && " until now"}</h2>
      ${isCounted(picked) ? html`<${Bill} day=${picked} currency=${currency} stored=${stored(picked)} hours=${hours(picked)} />` : html`<p class="dim">No broker counted on this day.</p>`}
      <p class="dim">${found.brokers.map((each) => `Broker ${each.node_id} counts ${each.since_ms === null ? "from now on" : `since the hour that began at ${time(each.since_ms).slice(0, 16)}`}.`).join(" ")}</p>`}`;
}
