// A form that writes one record.
import { html, useState } from "./vendor/htm-preact-3.1.1.js";
import { request, usePoll } from "./api.js";
import { number } from "./format.js";
import { jsonFault } from "./json.js";
import { ErrorBox } from "./parts.js";

const FORMS = [["STRING", "text"], ["JSON", "JSON"], ["BINARY", "base64"], ["", "null: it deletes its key"]];
const NONE = { key: "", emptyKey: false, value: "", form: "STRING" };

// Returns the fields of a record as they were typed. JSON is sent as a text, so that no number and no name is lost.
export function recordFields({ key, emptyKey, value, form }) {
  if (form === "JSON" && jsonFault(value)) throw new Error(`The value is no JSON: ${jsonFault(value)}.`);
  const fields = { value: form ? { type: form === "JSON" ? "STRING" : form, data: value } : null };
  return key || emptyKey ? { ...fields, key: { type: "STRING", data: key } } : fields;
}

// `partition` is "all" for the partition that the broker chooses. `after` is called when the record is written.
export function Produce({ cluster, topic, partition, after }) {
  const [record, setRecord] = useState(NONE);
  const [open, setOpen] = useState(false);
  const place = usePoll(open ? `/tiered/v1/topics/${encodeURIComponent(topic)}/storage` : null, 0).value;
  const [outcome, setOutcome] = useState({ written: null, error: null, busy: false });
  const field = (name) => ({ value: record[name], onInput: (event) => setRecord({ ...record, [name]: event.target.value }) });
  const write = async (event) => {
    event.preventDefault();
    setOutcome({ written: null, error: null, busy: true });
    try {
      const body = { ...(partition === "all" ? {} : { partition_id: Number(partition) }), ...recordFields(record) };
      const written = await request(`/v3/clusters/${cluster}/topics/${encodeURIComponent(topic)}/records`, { method: "POST", body });
      if (written.error_code !== 200) throw new Error(written.message);
      setOutcome({ written, error: null, busy: false });
      setRecord({ ...NONE, form: record.form });
      after();
    } catch (error) {
      setOutcome({ written: null, error, busy: false });
    }
  };
  return html`<details onToggle=${(event) => event.target === event.currentTarget && setOpen(event.target.open)}><summary>Write a record to ${partition === "all" ? "the partition of its key" : `partition ${partition}`}</summary>
    ${place?.is_internal ? html`<p class="dim">The topic is internal: clients cannot write to it.</p>` : html`<form class="form" onSubmit=${write}>
      <label>Key <input ...${field("key")} placeholder=${record.emptyKey ? "empty" : "none"} /></label>
      <label class="check"><input type="checkbox" checked=${record.emptyKey} onChange=${(event) => setRecord({ ...record, emptyKey: event.target.checked })} /> a key that is empty, instead of none</label>
      <label>Value is <select ...${field("form")} onChange=${(event) => setRecord({ ...record, form: event.target.value })}>
        ${FORMS.map(([form, words]) => html`<option value=${form} selected=${record.form === form}>${words}</option>`)}</select></label>
      ${record.form && html`<label class="long">Value <textarea rows="4" placeholder="empty" ...${field("value")}></textarea></label>`}
      <button type="submit" disabled=${outcome.busy || !cluster}>Write</button>
    </form>`}
    <${ErrorBox} error=${outcome.error} />
    ${outcome.written && html`<p role="status">Written to partition ${outcome.written.partition_id} at offset ${number(outcome.written.offset)}.</p>`}</details>`;
}
