// Access: the ACLs, the users that log in with SCRAM, and the quotas. Secrets are never shown.
import { html } from "./vendor/htm-preact-3.1.1.js";
import { Act, tiered } from "./act.js";
import { request, useAbout, usePoll } from "./api.js";
import { number, plural } from "./format.js";
import { Loading, Table, Title, useAddress } from "./parts.js";

const OPERATIONS = {
  TOPIC: ["READ", "WRITE", "CREATE", "DELETE", "ALTER", "DESCRIBE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS", "ALL"],
  GROUP: ["READ", "DELETE", "DESCRIBE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS", "ALL"],
  CLUSTER: ["CREATE", "ALTER", "DESCRIBE", "CLUSTER_ACTION", "IDEMPOTENT_WRITE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS", "ALL"],
  TRANSACTIONAL_ID: ["WRITE", "DESCRIBE", "TWO_PHASE_COMMIT", "ALL"],
};
const OPTIONS = { TOPIC: "--topic", GROUP: "--group", TRANSACTIONAL_ID: "--transactional-id", DELEGATION_TOKEN: "--delegation-token", USER: "--user-principal" };
const LOCK_OUT = "Do it even if nobody may change ACLs and users any more";
const MECHANISMS = [["SCRAM-SHA-512", "SCRAM-SHA-512"], ["SCRAM-SHA-256", "SCRAM-SHA-256"]];
const words = (text) => text.toLowerCase().replaceAll("_", " ");

function aclCommand(verb, acl, force) {
  const resource = acl.resource_type === "CLUSTER" ? ["--cluster"] : [OPTIONS[acl.resource_type], acl.resource_name];
  const pattern = acl.pattern_type === "PREFIXED" || verb === "remove" ? ["--resource-pattern-type", acl.pattern_type.toLowerCase()] : [];
  const host = acl.host === "*" && verb === "add" ? [] : ["--host", acl.host];
  return tiered("acl", verb, ...resource, ...pattern, acl.permission === "ALLOW" ? "--allow-principal" : "--deny-principal", acl.principal, ...host, "--operation", acl.operation, force ? "--force" : "");
}

const VERBS = {
  ALL: "do everything with", DESCRIBE_CONFIGS: "see the settings of", ALTER_CONFIGS: "change the settings of", CLUSTER_ACTION: "act as a broker of",
  IDEMPOTENT_WRITE: "write idempotently to", TWO_PHASE_COMMIT: "commit in two phases with", CREATE_TOKENS: "create tokens of", DESCRIBE_TOKENS: "see tokens of",
};

// What an ACL covers, and what it says, in words.
function resourceWords(acl) {
  if (acl.resource_type === "CLUSTER") return "the cluster";
  const kind = words(acl.resource_type);
  if (acl.pattern_type === "PREFIXED") return `each ${kind} whose name begins with ${acl.resource_name}`;
  return acl.resource_name === "*" ? `every ${kind}` : `the ${kind} ${acl.resource_name}`;
}
const sentence = (acl) => `${acl.principal} ${acl.permission === "ALLOW" ? "may" : "may not"} ${VERBS[acl.operation] ?? words(acl.operation)} ${resourceWords(acl)}, from ${acl.host === "*" ? "any address" : acl.host}.`;

function AddAcl({ path }) {
  const kinds = Object.keys(OPERATIONS);
  const fields = [
    { name: "principal", label: "Principal", required: true, placeholder: "User:alice" },
    { name: "permission", label: "Effect", options: [["ALLOW", "allow"], ["DENY", "deny"]] },
    { name: "resource_type", label: "Resource", options: kinds.map((each) => [each, words(each)]) },
    { name: "resource_name", label: "Name (* for all)", required: true, shown: (values) => values.resource_type !== "CLUSTER" },
    { name: "pattern_type", label: "The name is", options: [["LITERAL", "the whole name"], ["PREFIXED", "the beginning of names"]], shown: (values) => values.resource_type !== "CLUSTER" },
    ...kinds.map((kind) => ({ name: "operation", label: "Operation", options: OPERATIONS[kind].map((each) => [each, words(each)]), shown: (values) => values.resource_type === kind })),
    { name: "host", label: "Address of the client (* for all)", value: "*", required: true },
  ];
  const acl = ({ force, ...values }) => ({
    ...values,
    resource_name: values.resource_type === "CLUSTER" ? "kafka-cluster" : values.resource_name,
    pattern_type: values.resource_type === "CLUSTER" ? "LITERAL" : values.pattern_type,
    operation: OPERATIONS[values.resource_type].includes(values.operation) ? values.operation : OPERATIONS[values.resource_type][0],
  });
  const plan = async (values) => ({ facts: [sentence(acl(values))] });
  const perform = async (values) => {
    await request(values.force ? `${path}?force=true` : path, { method: "POST", body: acl(values) });
    return "The ACL is in force.";
  };
  return html`<${Act} label="Add an ACL" fields=${fields} plan=${plan} command=${(values) => aclCommand("add", acl(values), values.force)} perform=${perform} force=${LOCK_OUT} />`;
}

function RemoveAcl({ path, acl }) {
  const chosen = Object.fromEntries(["resource_type", "resource_name", "pattern_type", "principal", "host", "operation", "permission"].map((name) => [name, acl[name]]));
  const plan = async () => ({ facts: [`This is no longer so: ${sentence(acl)}`, acl.permission === "ALLOW" ? "Requests that need it are refused at once." : "Requests that it refused may be served at once."] });
  const perform = async (values) => {
    const gone = await request(`${path}?${new URLSearchParams(values.force ? { ...chosen, force: "true" } : chosen)}`, { method: "DELETE" });
    return `${plural(gone.data.length, "ACL")} removed.`;
  };
  return html`<${Act} label="Remove" title="Remove an ACL" deletes plan=${plan} confirm=${acl.principal} command=${(values) => aclCommand("remove", acl, values.force)} perform=${perform} force=${LOCK_OUT} />`;
}

// True if the pattern of an ACL covers a name: all names, those with a beginning, or this one.
const covers = (acl, name) => acl.resource_type !== "CLUSTER" && (acl.pattern_type === "PREFIXED" ? name.startsWith(acl.resource_name) : acl.resource_name === "*" || acl.resource_name === name);

function Acls({ cluster }) {
  const [view, change] = useAddress({ tab: "", search: "", covers: "", kind: "" });
  const path = `/v3/clusters/${cluster}/acls`;
  const about = useAbout();
  const acls = usePoll(cluster && about?.has_authorizer ? path : null, 5);
  if (about && !about.has_authorizer) return html`<p class="verdict">The cluster has no ACLs: everybody may do everything. <code>authorizer.class.name</code> turns them on.</p>`;
  const wanted = view.search.toLowerCase();
  const rows = (acls.value?.data ?? []).filter((each) => `${each.principal} ${each.resource_name}`.toLowerCase().includes(wanted) && (!view.covers || covers(each, view.covers)) && (!view.kind || each.resource_type === view.kind));
  const columns = [
    ["principal", "Principal"],
    ["permission", "Effect", (each) => html`<span class=${`state ${each.permission === "ALLOW" ? "live" : "fenced"}`}>${words(each.permission)}</span>`],
    ["operation", "Operation", (each) => words(each.operation)],
    ["resource_type", "Resource", (each) => words(each.resource_type)],
    ["resource_name", "Name", (each) => html`<code>${each.resource_name}${each.pattern_type === "PREFIXED" ? "…" : ""}</code>`],
    ["host", "From"],
    ["act", "", (each) => html`<${RemoveAcl} path=${path} acl=${each} />`],
  ];
  return html`<div class="tools"><label>Search <input type="search" value=${view.search} onInput=${(event) => change({ search: event.target.value })} /></label>
      <label>Covers the name <input type="search" placeholder="a whole name" value=${view.covers} onInput=${(event) => change({ covers: event.target.value })} /></label>
      <label>Resource <select onChange=${(event) => change({ kind: event.target.value })}><option value="">each</option>
        ${Object.keys(OPERATIONS).map((each) => html`<option value=${each} selected=${each === view.kind}>${words(each)}</option>`)}</select></label>
      ${cluster && html`<${AddAcl} path=${path} />`}<span class="dim">${acls.value && plural(rows.length, "ACL")}</span></div>
    <p class="dim">A deny is stronger than every allow. The users of <code>super.users</code> need no ACL.</p>
    <${Loading} state=${acls} />
    ${acls.value && html`<${Table} name="ACLs" rows=${rows} columns=${columns} empty=${view.covers ? "No ACL covers this name." : view.kind ? "No ACL is for such a resource." : view.search ? "No ACL has this text as it stands. Others may cover the name: by *, or by its beginning." : "There are no ACLs: only super users may do anything."} />`}`;
}

// Returns sentences on the logins and the rights of a user, as the broker is set.
export function loginFacts(name, about) {
  return [
    about?.takes_passwords ? `${name} can log in with it.` : "No listener of this broker takes passwords of users: it has no effect until one does (a listener with SASL, or `authentication.method=BASIC` for HTTP).",
    about?.has_authorizer ? `Rights are those that ACLs and the broker's settings give to User:${name}.` : "The cluster has no ACLs: everybody may do everything.",
  ];
}

function SetPassword({ user, mechanisms = [] }) {
  const about = useAbout();
  const fields = [
    ...(user ? [] : [{ name: "user", label: "User", required: true, maxlength: 249 }]),
    { name: "mechanism", label: "Mechanism", options: MECHANISMS },
    { name: "password", label: "Password", type: "password", required: true, maxlength: 1024 },
    { name: "again", label: "Once more", type: "password", required: true, maxlength: 1024 },
  ];
  const plan = async (values) => {
    const clear = location.protocol === "http:" && !["localhost", "127.0.0.1", "[::1]"].includes(location.hostname);
    const blocked = values.password === values.again ? null : "The two passwords differ.";
    if (blocked) return { facts: [], blocked };
    const name = user ?? values.user;
    const facts = [mechanisms.includes(values.mechanism) ? `The old password of ${user} for ${values.mechanism} ends at once.` : `${name} has a password for ${values.mechanism}.`, ...loginFacts(name, about)];
    if (clear) facts.push("This page has no TLS: others on the network can read the password.");
    return { facts };
  };
  const perform = async (values) => {
    const name = user ?? values.user;
    await request(`/tiered/v1/users/${encodeURIComponent(name)}`, { method: "PUT", body: { mechanism: values.mechanism, password: values.password } });
    return `The password of ${name} is set.`;
  };
  const command = (values) => tiered("user", user ? "alter" : "add", user ?? values.user, "--mechanism", values.mechanism);
  return html`<${Act} label=${user ? "Change password" : "Add a user"} title=${user ? `Change the password of ${user}` : "Add a user"} fields=${fields} plan=${plan} command=${command} perform=${perform} />`;
}

function RemoveUser({ user }) {
  const plan = async () => ({ facts: [`${user} cannot log in any more. Connections that are open end at their next login.`, "The ACLs and quotas that name the user stay."] });
  const perform = async (values) => {
    await request(`/tiered/v1/users/${encodeURIComponent(user)}${values.force ? "?force=true" : ""}`, { method: "DELETE" });
    return `User ${user} is removed.`;
  };
  return html`<${Act} label="Remove" title=${`Remove the user ${user}`} deletes plan=${plan} confirm=${user} command=${(values) => tiered("user", "remove", user, values.force ? "--force" : "")} perform=${perform} force=${LOCK_OUT} />`;
}

function Users() {
  const users = usePoll("/tiered/v1/users", 5);
  const columns = [
    ["user", "User"],
    ["mechanisms", "Logs in with", (each) => each.mechanisms.map((way) => `${way.mechanism}, ${number(way.iterations)} iterations`).join("; ")],
    ["act", "", (each) => html`<${SetPassword} user=${each.user} mechanisms=${each.mechanisms.map((way) => way.mechanism)} /> <${RemoveUser} user=${each.user} />`],
  ];
  return html`<div class="tools"><${SetPassword} /><span class="dim">${users.value && plural(users.value.users.length, "user")}</span></div>
    <${Loading} state=${users} />
    ${users.value && html`<${Table} name="Users" rows=${users.value.users} columns=${columns} empty="No user has a password for SCRAM." />`}`;
}

const UNITS = { producer_byte_rate: "B/s", consumer_byte_rate: "B/s", request_percentage: "%", controller_mutation_rate: "changes/s", connection_creation_rate: "connections/s" };
const QUOTAS = Object.keys(UNITS);
const amount = (quota, value) => [number(value), UNITS[quota]].filter(Boolean).join(" ");
const PARTS = { user: "--user", client_id: "--client-id", ip: "--ip" };
const ownerWords = (owner) => Object.entries(owner).map(([kind, name]) => `${kind.replace("_", " ")} ${name ?? "(each without its own)"}`).join(", ");
const ownerOptions = (owner) => Object.entries(owner).flatMap(([kind, name]) => (name === null ? [`--default-${PARTS[kind].slice(2)}`] : [PARTS[kind], name]));

function SetQuota() {
  const fields = [
    { name: "kind", label: "For", options: [["user", "a user"], ["client_id", "a client id"], ["ip", "an address"]] },
    { name: "name", label: "Name (empty: each without a quota of its own)" },
    { name: "quota", label: "Quota", options: [...QUOTAS.map((each) => [each, each]), ["other", "another one"]] },
    { name: "other", label: "Its name", required: true, shown: (values) => values.quota === "other" },
    { name: "value", label: "Value (B/s, % of a core, or changes or connections a second)", type: "number", step: "any", min: 0, required: true },
  ];
  const body = (values, only) => ({ owner: { [values.kind]: values.name || null }, set: { [values.quota === "other" ? values.other : values.quota]: Number(values.value) }, validate_only: only });
  const plan = async (values) => {
    const wanted = body(values, true);
    await request("/tiered/v1/quotas", { method: "POST", body: wanted });
    return { facts: [`${ownerWords(wanted.owner)}: ${Object.entries(wanted.set).map(([key, value]) => `${key} ${amount(key, value)}`)} on each broker.`, "Clients above it are slowed down, not refused."] };
  };
  const perform = async (values) => {
    await request("/tiered/v1/quotas", { method: "POST", body: body(values, false) });
    return "The quota is in force.";
  };
  const command = (values) => {
    const wanted = body(values, false);
    return tiered("quota", "set", ...ownerOptions(wanted.owner), ...Object.entries(wanted.set).map(([key, value]) => `${key}=${value}`));
  };
  return html`<${Act} label="Set a quota" fields=${fields} plan=${plan} command=${command} perform=${perform} />`;
}

function RemoveQuota({ row }) {
  const plan = async () => ({ facts: [`${ownerWords(row.owner)}: ${row.quota} of ${amount(row.quota, row.value)} ends at once.`] });
  const perform = async () => {
    await request("/tiered/v1/quotas", { method: "POST", body: { owner: row.owner, remove: [row.quota] } });
    return "The quota is removed.";
  };
  return html`<${Act} label="Remove" title="Remove a quota" deletes plan=${plan} command=${() => tiered("quota", "remove", ...ownerOptions(row.owner), row.quota)} perform=${perform} />`;
}

function Quotas() {
  const quotas = usePoll("/tiered/v1/quotas", 5);
  const rows = (quotas.value?.quotas ?? []).flatMap((each) => Object.entries(each.quotas).map(([quota, value]) => ({ owner: each.owner, quota, value })));
  const columns = [
    ["owner", "For", (each) => ownerWords(each.owner)],
    ["quota", "Quota", (each) => html`<code>${each.quota}</code>`],
    ["value", "Value on each broker", (each) => amount(each.quota, each.value), true],
    ["act", "", (each) => html`<${RemoveQuota} row=${each} />`],
  ];
  return html`<div class="tools"><${SetQuota} /><span class="dim">${quotas.value && plural(rows.length, "quota")}</span></div>
    <${Loading} state=${quotas} />
    ${quotas.value && html`<${Table} name="Quotas" rows=${rows} columns=${columns} empty="There are no quotas." />`}`;
}

const TABS = [["", "ACLs", Acls], ["users", "Users", Users], ["quotas", "Quotas", Quotas]];

export function AccessPage({ cluster }) {
  const [view, change] = useAddress({ tab: "" });
  const [, , Shown] = TABS.find(([name]) => name === view.tab) ?? TABS[0];
  return html`<${Title} words="Access" />
    <div class="tabs" role="tablist">${TABS.map(([name, label]) => html`
      <button role="tab" data-words=${label} aria-selected=${view.tab === name} onClick=${() => change({ tab: name, search: "" })}>${label}</button>`)}</div>
    <${Shown} cluster=${cluster} />`;
}
