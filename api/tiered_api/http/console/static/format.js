// Numbers and times as people read them.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export function bytes(count) {
  if (count === null || count === undefined || count < 0) return "–";
  let unit = 0;
  let value = count;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit && value < 100 ? value.toFixed(1) : Math.round(value)} ${UNITS[unit]}`;
}

export function number(value) {
  return value === null || value === undefined ? "–" : value.toLocaleString("en-US");
}

export function time(ms) {
  return ms < 0 ? "–" : new Date(ms).toISOString().replace("T", " ").replace("Z", "");
}

// An input for a time in UTC, the same in each language of a browser.
export const TIME_INPUT = { placeholder: "2026-11-30 14:05:00", pattern: "\\d{4}-\\d\\d-\\d\\d([ T]\\d\\d:\\d\\d(:\\d\\d(\\.\\d{1,3})?)?)?", title: "year-month-day hours:minutes:seconds in UTC", required: true };

// Returns the time in ms that such a text says, NaN if it says none: a day that no month has is no other day.
export function parseTime(text) {
  const [day, hours = "00:00"] = text.trim().split(/[ T]/);
  const midnight = Date.parse(`${day}T00:00Z`);
  const isDay = !Number.isNaN(midnight) && new Date(midnight).toISOString().startsWith(day);
  return isDay ? Date.parse(`${day}T${hours}Z`) : NaN;
}

export function requireTime(text) {
  const ms = parseTime(text);
  if (Number.isNaN(ms)) throw new Error(`${text} is no time.`);
  return ms;
}

export function plural(count, word) {
  return `${number(count)} ${word}${count === 1 ? "" : "s"}`;
}

// Returns a state of the protocol as words, and that of a group with what it means.
export const stateWords = (state) => (state ?? "").replace(/(?<=[a-z])(?=[A-Z])/g, " ").toLowerCase();
export const groupState = (state) => (state === "Empty" ? "empty: nobody reads in it" : stateWords(state));

export function brokers(ids) {
  return ids.length ? `broker${ids.length === 1 ? "" : "s"} ${ids.join(", ")}` : "no broker";
}

// Characters that control something and show nothing. The Unicode ones turn the text that follows, to its end.
const CONTROLS = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069]/g;

// Returns a text whose controls are escapes, so that they turn no words beside it.
export function plain(text) {
  return typeof text === "string" ? text.replace(CONTROLS, (each) => `\\u${each.charCodeAt(0).toString(16).padStart(4, "0")}`) : text;
}

// A time span in its largest unit.
export function span(seconds) {
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
    if (seconds >= 2 * size) return `${Math.round(seconds / size)} ${unit}`;
  }
  return `${Math.round(seconds)} s`;
}
