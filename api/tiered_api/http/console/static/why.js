// Why something is as it is: the sentences of the broker, the troubles first, asked for when they are opened.
import { html, useState } from "./vendor/htm-preact-3.1.1.js";
import { usePoll } from "./api.js";
import { Loading } from "./parts.js";

const SECONDS = 10;

// `path` is that of the subject in the interface, `what` its name in words.
export function Why({ path, what }) {
  const [open, setOpen] = useState(false);
  const found = usePoll(open ? `${path}/explain` : null, SECONDS);
  return html`<details class="why" onToggle=${(event) => setOpen(event.target.open)}><summary aria-label=${`Why is ${what} so?`}>Why?</summary>
    ${open && html`<${Loading} state=${found} />`}
    ${found.value && html`<ul aria-label=${`Reasons of ${what}`}>${found.value.facts.map((each, at) => html`<li key=${at}>
      ${each.trouble && html`<span class="state away">trouble</span> `}${found.value.sentences[at]}</li>`)}</ul>`}</details>`;
}
