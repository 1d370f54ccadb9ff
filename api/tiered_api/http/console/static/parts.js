// Parts that several pages show.
import { html, useEffect, useRef, useState } from "./vendor/htm-preact-3.1.1.js";

export function ErrorBox({ error }) {
  if (!error) return null;
  const kind = error.status === 403 || error.status === 401 ? "You lack a right" : "Not possible now";
  return html`<div class="error" role="alert"><strong>${kind}.</strong> ${error.message}
    ${error.code ? html` <span class="dim">(${error.code})</span>` : null}
    ${error.elsewhere?.length > 0 && html`<p>Go on with ${error.elsewhere.map(([node, address], at) => html`${at ? ", " : ""}<a href=${address}>broker ${node}</a>`)}.</p>`}</div>`;
}

export function NoMessages() {
  return html`<p>The console shows no records here (<code>tiered.console.messages</code>). A command or a script reads what your rights allow.</p>`;
}

export function Title({ words, children }) {
  useEffect(() => {
    document.title = `${words} · tiered`;
  }, [words]);
  return html`<div class="title"><h1>${words}</h1>${children}</div>`;
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
const UNWINDOWED = 200;

// A table of which only the rows near the visible part are in the page. Each column: [key, words, render, is_number].
export function Table({ rows, columns, name, empty }) {
  const body = useRef(null);
  const [first, setFirst] = useState(0);
  const [sort, setSort] = useState(["", 1]);
  useEffect(() => {
    if (rows.length <= UNWINDOWED) return undefined;
    const scrolled = () => {
      const above = Math.max(0, -body.current.getBoundingClientRect().top);
      setFirst(Math.max(0, Math.floor(above / ROW_PIXELS) - ROWS_AROUND));
    };
    addEventListener("scroll", scrolled, { passive: true });
    scrolled();
    return () => removeEventListener("scroll", scrolled);
  }, [rows.length]);
  const [key, way] = sort;
  const value = (row) => row[key] ?? "";
  const sorted = key ? [...rows].sort((a, b) => way * (value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : 0)) : rows;
  const windowed = rows.length > UNWINDOWED;
  const start = windowed ? first : 0;
  const end = windowed ? Math.min(rows.length, first + Math.ceil(innerHeight / ROW_PIXELS) + 2 * ROWS_AROUND) : rows.length;
  const space = (count) => count > 0 && html`<tr aria-hidden="true"><td colspan=${columns.length} style=${{ height: `${count * ROW_PIXELS}px`, padding: 0 }}></td></tr>`;
  if (!rows.length) return html`<p class="dim">${empty ?? "There are none."}</p>`;
  return html`<div class="wide"><table aria-label=${name} aria-rowcount=${rows.length}>
    <thead><tr>${columns.map(([column, words, , isNumber]) => html`
      <th scope="col" class=${isNumber ? "number" : ""} aria-sort=${key !== column ? "none" : way > 0 ? "ascending" : "descending"}>
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
