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

// The bytes that were stored, as an average over the hours of the day: of today, those until now.
const stored = (day) => (day.stored_gib_hours * 2 ** 30) / Math.min(24, Math.max(1, (Date.now() - Date.parse(day.day)) / HOUR_MS));

function Bill({ day, currency }) {
  const rows = CLASSES.map(([verb, words]) => ({ words, ...day.classes[verb] }));
  const columns = [
    ["words", "Class"],
    ["requests", "Requests", (each) => number(each.requests), true],
    ["bytes", "Bytes", (each) => bytes(each.bytes), true],
    ["cost", "Cost", (each) => money(each.cost, currency), true],
  ];
  const kept = { words: "Stored, on average", requests: null, bytes: stored(day), cost: day.stored_cost };
  return html`<${Table} name=${`Use of the bucket on ${day.day}`} rows=${[...rows, kept]} columns=${columns} />`;
}

export function CostsPage() {
  const [view, change] = useAddress({ days: DAYS[0], day: "" });
  const state = usePoll(`/tiered/v1/costs?days=${encodeURIComponent(view.days)}`, SECONDS);
  const found = state.value;
  const currency = found?.prices?.currency ?? "";
  const picked = found && (found.days.find((each) => each.day === view.day) ?? found.days[1] ?? found.days[0]);
  const sum = (day, name) => Object.values(day.classes).reduce((total, each) => total + each[name], 0);
  const columns = [
    ["day", "Day (UTC)", (each) => html`<button class="sort" aria-pressed=${each === picked} onClick=${() => change({ day: each.day })}>${each.day}</button>${each === found.days[0] && html` <span class="dim">until now</span>`}`],
    ["requests", "Requests", (each) => number(sum(each, "requests")), true],
    ["bytes", "Bytes moved", (each) => bytes(sum(each, "bytes")), true],
    ["stored_gib_hours", "Stored on average", (each) => bytes(stored(each)), true],
    ["cost", "Cost", (each) => money(each.cost, currency), true],
  ];
  return html`<${Title} words="Costs" />
    <${Loading} state=${state} />
    ${found && html`
      <dl class="figures">
        <div><dt>Yesterday</dt><dd>${money(found.days[1]?.cost, currency)}</dd></div>
        <div><dt>Today until now</dt><dd>${money(found.days[0].cost, currency)}</dd></div>
        <div><dt>${plural(found.days.length, "day")}</dt><dd>${found.prices ? money(found.days.reduce((total, each) => total + each.cost, 0), currency) : "–"}</dd></div></dl>
      ${found.prices ? html`<p class="dim">Prices as of ${found.prices.as_of}: ${found.prices.source}. The sums are of these brokers alone: the bill of the store also has its other readers.</p>`
        : html`<p>Use is counted, and its cost is not known: ${found.problem}. Write the prices of your store into a file, and set <code>tiered.console.prices</code> of the brokers to it.</p>`}
      ${found.brokers.filter((each) => each.problem).map((each) => html`<${ErrorBox} key=${each.node_id} error=${{ message: `The use of broker ${each.node_id} is missing: ${each.problem}` }} />`)}
      <div class="tools"><label>Days <select onChange=${(event) => change({ days: event.target.value })}>
        ${DAYS.map((each) => html`<option value=${each} selected=${each === view.days}>${each}</option>`)}</select></label></div>
      <${Table} name="Days" rows=${found.days} columns=${columns} />
      <h2>${picked.day}</h2>
      <${Bill} day=${picked} currency=${currency} />
      <p class="dim">${found.brokers.map((each) => `Broker ${each.node_id} counts ${each.since_ms === null ? "from now on" : `since ${time(each.since_ms).slice(0, 16)}`}`).join(", ")}.</p>`}`;
}
