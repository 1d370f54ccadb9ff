// A form that writes one record.
import { html, useState } from "./vendor/htm-preact-3.1.1.js";
import { request } from "./api.js";
import { number } from "./format.js";
import { ErrorBox } from "./parts.js";

const FORMS = [["STRING", "text"], ["JSON", "JSON"]];

export function Produce({ cluster, topic, partition }) {
  const [record, setRecord] = useState({ key: "", value: "", form: "STRING" });
  const [outcome, setOutcome] = useState({ written: null, error: null, busy: false });
  const field = (name) => ({ value: record[name], onInput: (event) => setRecord({ ...record, [name]: event.target.value }) });
  const write = async (event) => {
    event.preventDefault();
    setOutcome({ written: null, error: null, busy: true });
    try {
      const data = record.form === "JSON" ? JSON.parse(record.value) : record.value;
      const body = { partition_id: Number(partition), value: { type: record.form, data } };
      if (record.key) body.key = { type: "STRING", data: record.key };
      const written = await request(`/v3/clusters/${cluster}/topics/${encodeURIComponent(topic)}/records`, { method: "POST", body });
      if (written.error_code !== 200) throw new Error(written.message);
      setOutcome({ written, error: null, busy: false });
    } catch (error) {
      setOutcome({ written: null, error, busy: false });
    }
  };
  return html`<details><summary>Write a record to partition ${partition}</summary>
    <form class="form" onSubmit=${write}>
      <label>Key <input ...${field("key")} placeholder="none" /></label>
      <label>Value is <select ...${field("form")} onChange=${(event) => setRecord({ ...record, form: event.target.value })}>
        ${FORMS.map(([form, words]) => html`<option value=${form} selected=${record.form === form}>${words}</option>`)}</select></label>
      <label class="long">Value <textarea rows="4" required ...${field("value")}></textarea></label>
      <button type="submit" disabled=${outcome.busy || !cluster}>Write</button>
    </form>
    <${ErrorBox} error=${outcome.error} />
    ${outcome.written && html`<p role="status">Written to partition ${outcome.written.partition_id} at offset ${number(outcome.written.offset)}.</p>`}</details>`;
}
