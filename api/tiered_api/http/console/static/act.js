// An act: a button opens a dialogue that asks for values, says in numbers what will change, and does it when told.
import { html, useLayoutEffect, useRef, useState } from "./vendor/htm-preact-3.1.1.js";
import { bootstrapBrokers, showHeld, useAbout, useBrokers } from "./api.js";
import { quoted } from "./copy.js";
import { plain } from "./format.js";
import { Coded, ErrorBox, Table } from "./parts.js";

// Returns a command of `tiered` with its brokers: words that are no options are quoted.
export function tiered(...words) {
  const shown = words.filter((each) => each !== "").map((each) => (/^[\w./:@=,+-]+$/.test(each) ? each : quoted(String(each))));
  return `tiered ${shown.join(" ")} --brokers ${bootstrapBrokers()}`;
}

function Field({ field, values, change }) {
  const { name, label, type = "text", options, ...more } = field;
  if (field.shown && !field.shown(values)) return null;
  delete more.shown;
  delete more.value;
  const set = (event) => change({ ...values, [name]: type === "checkbox" ? event.target.checked : event.target.value });
  if (type === "checkbox") return html`<label class="check"><input type="checkbox" checked=${!!values[name]} onChange=${set} /> ${label}</label>`;
  if (options) {
    return html`<label>${label} <select ...${more} onChange=${set}>
      ${options.map(([value, words]) => html`<option value=${value} selected=${String(values[name]) === String(value)}>${words}</option>`)}</select></label>`;
  }
  return html`<label><${Coded} text=${label} /> <input type=${type} ...${more} value=${values[name]} onInput=${set} autocomplete="off" /></label>`;
}

// fields:  [{ name, label, type, options, value, shown(values), ... }]
// plan:    async (values) => { facts: [sentence], rows, columns, blocked }; it changes nothing
// command: (values, plan) => the same act as a command
// confirm: the name that has to be typed, for what deletes or moves data
// perform: async (values, plan) => the sentence that tells what was done
// deletes: true for an act that takes records, topics, groups or rights away: its button says so by its colour
// force:   words of a box that does what the broker refused with 409, as `values.force`
// after:   is called when the dialogue of a done act is closed
export function Act({ label, title = label, fields = [], plan, command, confirm, perform, force, after, disabled, deletes }) {
  const box = useRef(null);
  const start = () => Object.fromEntries(fields.map((each) => [each.name, each.value ?? (each.options ? each.options[0]?.[0] ?? "" : each.type === "checkbox" ? false : "")]));
  const [state, setState] = useState({ values: {}, found: null, typed: "", error: null, busy: false, done: null });
  const about = useAbout();
  useBrokers();
  const { values, found, typed, error, busy, done } = state;
  const put = (changes) => setState((was) => ({ ...was, ...changes }));
  const ask = async (given) => {
    put({ busy: true, error: null });
    try {
      put({ found: plan ? await plan(given) : { facts: [] }, busy: false });
    } catch (fault) {
      put({ error: fault, busy: false });
    }
  };
  const open = () => {
    const given = start();
    setState({ values: given, found: null, typed: "", error: null, busy: false, done: null });
    box.current.showModal();
    if (!fields.length) ask(given);
  };
  // The keys go on where the dialogue goes on: to the name to type, the act, the end, or the question that
  // was refused. They go before the page is drawn: no key may fall beside the dialogue.
  useLayoutEffect(() => {
    if (!box.current?.open || busy || (!found && !done && !error)) return;
    box.current.querySelector('input[aria-label="name to confirm"], .buttons button:not(:disabled)')?.focus();
  }, [found, done, busy, error]);
  const act = async (event) => {
    event.preventDefault();
    if (!found) return ask(values);
    put({ busy: true, error: null });
    try {
      put({ done: await perform(values, found), busy: false });
    } catch (fault) {
      put({ error: fault, busy: false });
    }
    return undefined;
  };
  const closed = () => {
    showHeld();
    if (done) after?.();
  };
  if (!about || about.read_only) return null;
  const text = found && command?.(values, found);
  // One element around both: two of them without it would end up elsewhere in a table that comes later.
  return html`<span class="opens"><button type="button" class=${deletes ? "deletes" : ""} disabled=${disabled} onClick=${open}>${label}</button>
    <dialog ref=${box} aria-label=${title} onClose=${closed}>
      <form class="act" onSubmit=${act}>
        <h2>${plain(title)}</h2>
        ${!done && fields.map((field) => html`<${Field} field=${field} values=${values} change=${(next) => put({ values: next, found: null, error: null })} />`)}
        ${found && !done && html`
          ${found.facts.length > 0 && html`<ul class="facts">${found.facts.map((each) => html`<li><${Coded} text=${each} /></li>`)}</ul>`}
          ${found.rows?.length > 0 && html`<div class="plan"><${Table} name="What changes" rows=${found.rows} columns=${found.columns} /></div>`}
          ${found.blocked && html`<p class="error"><${Coded} text=${found.blocked} /></p>`}
          ${text && html`<h4>The same as a command</h4><pre>${text}</pre>`}
          ${confirm && !found.blocked && html`<label><span>Type <code>${confirm}</code> to confirm</span>
            <input value=${typed} onInput=${(event) => put({ typed: event.target.value })} autocomplete="off" aria-label="name to confirm" /></label>`}`}
        <${ErrorBox} error=${error} />
        ${force && !done && (values.force || error?.status === 409) && html`<label class="check"><input type="checkbox" checked=${!!values.force} onChange=${(event) => put({ values: { ...values, force: event.target.checked } })} /> ${force}</label>`}
        ${done && html`<p role="status">${typeof done === "string" ? plain(done) : done}</p>`}
        <div class="buttons">
          ${!done && (found
            ? html`<button type="submit" class=${confirm ? "danger" : ""} disabled=${busy || !!found.blocked || (confirm && typed !== confirm)}>${label}</button>`
            : html`<button type="submit" disabled=${busy}>What will change?</button>`)}
          <button type="button" onClick=${() => box.current.close()}>${done ? "Close" : "Cancel"}</button>
        </div>
      </form></dialog></span>`;
}
