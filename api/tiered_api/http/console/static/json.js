// JSON as the text that it is: no number passes through a double, and a name may stand twice.

const TOKEN = /[{}[\],:]|"[^"\\]*(?:\\.[^"\\]*)*"|[^\s{}[\],:"]+/g;

// Returns the fault of a text that is no JSON, "" for JSON.
export function jsonFault(text) {
  try {
    JSON.parse(text);
    return "";
  } catch (fault) {
    return fault.message;
  }
}

// Returns the object or list that a text is as JSON, null for all other texts: { list, entries }. An entry is
// [name or index, value]. A value is such a node, or the text of a number, a string, true, false or null.
export function jsonTree(text) {
  if (!/^\s*[{[]/.test(text) || jsonFault(text)) return null;
  const open = [];
  let root = null;
  let name = null;
  const put = (value) => {
    const top = open.at(-1);
    if (top) top.entries.push([top.list ? top.entries.length : name, value]);
    else root = value;
  };
  for (const [token] of text.matchAll(TOKEN)) {
    if (token === "{" || token === "[") {
      const node = { list: token === "[", entries: [] };
      put(node);
      open.push(node);
    } else if (token === "}" || token === "]") open.pop();
    else if (token === ":") name = JSON.parse(open.at(-1).entries.pop()[1]);
    else if (token !== ",") put(token);
  }
  return root;
}

// Returns the text of a number, a string, true, false or null as it is shown: escapes of letters are letters.
export const scalarText = (token) => (token[0] === '"' ? JSON.stringify(JSON.parse(token)) : token);
