// The key, value or header of a record: as a tree of JSON, as text, as hex or as base64.
import { html, useMemo, useState } from "./vendor/htm-preact-3.1.1.js";
import { number, plain, plural } from "./format.js";
import { jsonTree, scalarText } from "./json.js";

const HEX_BYTES_MAX = 1 << 16;
const HEX_ROW = 16;
const CHILDREN_MAX = 100;
const OPEN_LEVELS = 2;
const FORMS = [["tree", "JSON tree"], ["text", "text"], ["hex", "hex"], ["base64", "base64"]];

const bytesOf = (text, base64) => (base64 === undefined ? new TextEncoder().encode(text) : Uint8Array.from(atob(base64), (each) => each.charCodeAt(0)));

function toBase64(bytes) {
  const parts = [];
  for (let at = 0; at < bytes.length; at += HEX_BYTES_MAX) parts.push(String.fromCharCode(...bytes.subarray(at, at + HEX_BYTES_MAX)));
  return btoa(parts.join(""));
}

// Returns rows of an offset, 16 bytes in hex, and their ASCII letters.
export function toHex(bytes) {
  const rows = [];
  for (let at = 0; at < Math.min(bytes.length, HEX_BYTES_MAX); at += HEX_ROW) {
    const row = [...bytes.subarray(at, at + HEX_ROW)];
    const hex = row.map((each) => each.toString(16).padStart(2, "0")).join(" ");
    const letters = row.map((each) => (each >= 32 && each < 127 ? String.fromCharCode(each) : ".")).join("");
    rows.push(`${at.toString(16).padStart(8, "0")}  ${hex.padEnd(3 * HEX_ROW)} ${letters}`);
  }
  return rows.join("\n");
}

function Node({ name, value, level }) {
  const label = name === null ? null : html`<code class="name">${plain(name)}</code>: `;
  if (typeof value === "string") return html`<li>${label}<code>${plain(scalarText(value))}</code></li>`;
  const { list, entries } = value;
  const words = plural(entries.length, list ? "item" : "field");
  if (!entries.length) return html`<li>${label}<code>${list ? "[]" : "{}"}</code></li>`;
  return html`<li><${Branch} label=${html`${label}<span class="dim">${words}</span>`} entries=${entries} level=${level} /></li>`;
}

// Only branches that were opened have their nodes in the page.
function Branch({ label, entries, level }) {
  const [open, setOpen] = useState(level < OPEN_LEVELS);
  return html`<details open=${open} onToggle=${(event) => event.target === event.currentTarget && setOpen(event.target.open)}><summary>${label}</summary>
    ${open && html`<ul class="tree">${entries.slice(0, CHILDREN_MAX).map(([name, value]) => html`<${Node} name=${name} value=${value} level=${level + 1} />`)}
      ${entries.length > CHILDREN_MAX && html`<li class="dim">and ${plural(entries.length - CHILDREN_MAX, "other")}</li>`}</ul>`}</details>`;
}

// Returns what the marker of a transaction says.
export function markerWords({ control, producer_id, producer_epoch, coordinator_epoch }) {
  return `${control === "commit" ? "Commit" : "Abort"} of producer ${producer_id}, epoch ${producer_epoch}; the epoch of its coordinator is ${coordinator_epoch}`;
}

// The value of a header: as text if it is UTF-8, else as it came, in base64.
export function HeaderValue({ base64 }) {
  if (base64 === null) return html`<span class="dim">null</span>`;
  try {
    return html`<code>${plain(new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytesOf("", base64)))}</code>`;
  } catch {
    return html`<span class="dim">base64</span> <code>${base64}</code>`;
  }
}

export function Content({ title, value, base64 }) {
  const json = useMemo(() => (base64 === undefined && value !== null ? jsonTree(value) : null), [value, base64]);
  const [form, setForm] = useState(json ? "tree" : base64 === undefined ? "text" : "base64");
  if (value === null && base64 === undefined) return html`<h4>${title}</h4><span class="dim">null</span>`;
  const bytes = bytesOf(value, base64);
  const forms = FORMS.filter(([name]) => (name !== "tree" || json) && (name !== "text" || base64 === undefined));
  const shown = {
    tree: () => html`<ul class="tree"><${Node} name=${null} value=${json} level=${0} /></ul>`,
    text: () => html`<pre>${plain(value)}</pre>`,
    hex: () => html`<pre>${toHex(bytes)}</pre>${bytes.length > HEX_BYTES_MAX && html`<p class="dim">These are the first ${number(HEX_BYTES_MAX)} of ${plural(bytes.length, "byte")}.</p>`}`,
    base64: () => html`<pre>${toBase64(bytes)}</pre>`,
  };
  return html`<h4>${title} <span class="dim">${plural(bytes.length, "byte")}, as</span>
      <select class="small" aria-label=${`Show ${title.toLowerCase()} as`} onChange=${(event) => setForm(event.target.value)}>
        ${forms.map(([name, words]) => html`<option value=${name} selected=${name === form}>${words}</option>`)}</select></h4>
    ${shown[form]()}`;
}
