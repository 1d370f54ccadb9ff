// The same read in other tools, as text to copy.
import { html, useState } from "./vendor/htm-preact-3.1.1.js";
import { bootstrapBrokers, useBrokers } from "./api.js";
import { plain } from "./format.js";

// Returns a word for a shell. Controls are escapes, so that a person sees the command that runs.
export function quoted(text) {
  if (plain(text) === text) return `'${text.replaceAll("'", "'\\''")}'`;
  return `$'${plain(text.replace(/[\\']/g, "\\$&"))}'`;
}

// Returns [tool, command] for the record at an offset.
export function commands({ origin, brokers, topic, partition, offset }) {
  const path = `${origin}/topics/${encodeURIComponent(topic)}/partitions/${partition}/records?offset=${offset}`;
  const place = origin.replace(/^https?:\/\//, "");
  const python = JSON.stringify(path);
  return [
    ["curl", `curl ${quoted(path)}`],
    ["tiered", `tiered topic consume ${quoted(topic)} -p ${partition} -o ${offset} -n 1 --brokers ${brokers}`],
    ["kcat", `kcat -b ${brokers} -C -t ${quoted(topic)} -p ${partition} -o ${offset} -c 1`],
    ["Python", `import json, urllib.request\n\nwith urllib.request.urlopen(${python}) as reply:\n    print(json.load(reply)["records"][0])`],
    ["Spark", `rows = spark.read.format("tiered").option("bootstrap", ${JSON.stringify(place)}).option("topic", ${JSON.stringify(topic)}).load()\nrows.where("partition = ${partition} and offset = ${offset}").show()`],
  ];
}

export function CopyAs(place) {
  const [copied, setCopied] = useState("");
  useBrokers();
  const copy = async (tool, text) => {
    await navigator.clipboard?.writeText(text);
    setCopied(tool);
  };
  return html`<details><summary>The same in other tools</summary>
    ${commands({ origin: location.origin, brokers: bootstrapBrokers(), ...place }).map(([tool, text]) => html`
      <h4>${tool} ${navigator.clipboard && html`<button class="sort" onClick=${() => copy(tool, text)}>${copied === tool ? "copied" : "copy"}</button>`}</h4>
      <pre>${text}</pre>`)}</details>`;
}
