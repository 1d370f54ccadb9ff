// Parts that several pages show.
import { html, useEffect, useRef, useState } from "./vendor/htm-preact-3.1.1.js";
import { plain } from "./format.js";

export function ErrorBox({ error }) {
  if (!error) return null;
  const isLater = error.status === 0 || error.status >= 500;
  const kind = error.status === 403 || error.status === 401 ? "You lack a right" : isLater ? "Not possible now" : "Not possible";
  return html`<div class="error" role="alert"><strong>${kind}.</strong> ${plain(error.message)}
    ${error.code ? html` <span class="dim">(${error.code}${error.id ? `, request ${error.id}` : ""})</span>` : null}
    ${error.elsewhere?.length > 0 && html`<p>Go on with ${error.elsewhere.map(([node, address], at) => html`${at ? ", " : ""}<a href=${address}>broker ${node}</a>`)}.</p>`}</div>`;
}

// A sentence whose words in backticks are code.
export function Coded({ text }) {
  return html`<span>${String(text).split("`").map((each, at) => (at % 2 ? html`<code>${plain(each)}</code>` : plain(each)))}</span>`;
}

// The name of a setting, and below it what it does.
export function SettingName({ config }) {
  return html`<code>${config.name}</code><div class="about"><${Coded} text=${config.documentation ?? ""} /></div>`;
}

// Saves rows as a file with one JSON object a line.
export function saveLines(name, rows) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob(rows.map((each) => `${JSON.stringify(each)}\n`), { type: "application/x-ndjson" }));
  link.download = `${name}.jsonl`;
  link.click();
  URL.revokeObjectURL(link.href);
}

export function NoMessages() {
  return html`<p>The console shows no records here (<code>tiered.console.messages</code>). A command or a script reads what your rights allow.</p>`;
}

// `kind` says what the words name: a topic, a group, a table.
export function Title({ kind = "", words, children }) {
  useEffect(() => {
    document.title = `${kind ? `${kind} ` : ""}${words} · tiered`;
  }, [kind, words]);
  return html`<div class="title"><h1>${kind && html`<span class="dim">${kind}</span> `}<span>${plain(words)}</span></h1>${children}</div>`;
}

const TOPIC_TABS = [["", "Tiers"], ["messages", "Messages"], ["groups", "Groups"], ["settings", "Settings"]];
const isPlain = (event) => !event.metaKey && !event.ctrlKey && !event.shiftKey;

// The parts of a topic, one of which is shown. `choose` shows another one of the same page.
export function TopicTabs({ topic, shown, messages, choose }) {
  const root = `/console/topics/${encodeURIComponent(topic)}`;
  const address = (name) => (name === "messages" ? `${root}/messages` : name ? `${root}?tab=${name}` : root);
  const clicked = (name) => (event) => {
    if (!choose || name === "messages" || !isPlain(event)) return;
    event.preventDefault();
    choose(name);
  };
  return html`<div class="tabs" role="navigation" aria-label="Parts of the topic">${TOPIC_TABS.filter(([name]) => name !== "messages" || messages).map(([name, words]) => html`
    <a href=${address(name)} aria-current=${name === shown ? "page" : null} data-words=${words} onClick=${clicked(name)}>${words}</a>`)}</div>`;
}

// The state that stands in the page's address, so that it can be sent to a colleague.
export function useAddress(defaults) {
  const read = () => ({ ...defaults, ...Object.fromEntries(new URLSearchParams(location.search)) });
  const [value, setValue] = useState(read);
  const change = (changes) => {
    const next = { ...value, ...changes };
    const kept = Object.entries(next).filter(([name, text]) => text !== "" && text !== defaults[name]);
    const query = new URLSearchParams(kept).toString();
    history.replaceState(null, "", location.pathname + (query ? `?${query}` : ""));
    setValue(next);
  };
  return [value, change];
}

const ROW_PIXELS = 34;
const ROWS_AROUND = 20;
const UNWINDOWED = 300;
const rowsInPage = () => Math.ceil(innerHeight / ROW_PIXELS) + 2 * ROWS_AROUND;

// A table of which only the rows near the visible part are in the page. Each column: [key, words, render, is_number,
// title], the title for a word that needs one.
export function Table({ rows, columns, name, empty }) {
  const body = useRef(null);
  const [first, setFirst] = useState(0);
  const [sort, setSort] = useState(["", 1]);
  useEffect(() => {
    if (rows.length <= UNWINDOWED) return undefined;
    const scrolled = () => {
      const above = Math.max(0, -body.current.getBoundingClientRect().top);
      setFirst(Math.max(0, Math.min(rows.length - rowsInPage(), Math.floor(above / ROW_PIXELS) - ROWS_AROUND)));
    };
    addEventListener("scroll", scrolled, { passive: true });
    scrolled();
    return () => removeEventListener("scroll", scrolled);
  }, [rows.length]);
  const [key, way] = sort;
  const value = (row) => row[key] ?? "";
  const sorted = key ? [...rows].sort((a, b) => way * (value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : 0)) : rows;
  const windowed = rows.length > UNWINDOWED;
  const start = windowed ? Math.min(first, rows.length) : 0;
  const end = windowed ? Math.min(rows.length, first + rowsInPage()) : rows.length;
  const space = (count) => count > 0 && html`<tr aria-hidden="true"><td colspan=${columns.length} style=${{ height: `${count * ROW_PIXELS}px`, padding: 0 }}></td></tr>`;
  if (!rows.length) return html`<p class="dim">${empty ?? "There are none."}</p>`;
  return html`<div class="wide"><table aria-label=${name} aria-rowcount=${rows.length}>
    <thead><tr>${columns.map(([column, words, , isNumber, title]) => html`
      <th scope="col" title=${title} class=${isNumber ? "number" : ""} aria-sort=${key !== column ? "none" : way > 0 ? "ascending" : "descending"}>
        ${words && html`<button class="sort" onClick=${() => setSort([column, key === column ? -way : 1])}>${words}${key === column ? (way > 0 ? " ▲" : " ▼") : ""}</button>`}
      </th>`)}</tr></thead>
    <tbody ref=${body}>
      ${space(start)}
      ${sorted.slice(start, end).map((row) => html`<tr>${columns.map(([column, , show, isNumber]) => html`
        <td class=${isNumber ? "number" : ""}>${show ? show(row) : row[column]}</td>`)}</tr>`)}
      ${space(rows.length - end)}
    </tbody></table></div>`;
}

// One element in each state: where a component shrinks to nothing, Preact puts what comes next before its siblings.
export function Loading({ state }) {
  return html`<div>${state.error ? html`<${ErrorBox} error=${state.error} />` : !state.value && html`<p class="dim" role="status">Loading …</p>`}</div>`;
}
