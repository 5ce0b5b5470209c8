"use strict";
// Elements and words. Texts of the data become text nodes, never markup.

/** make("div", {class: "bar"}, "text", child): an element. */
function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children) {
    if (child !== null && child !== undefined) element.append(child);
  }
  return element;
}

/** Replaces what is in `element`. */
const fill = (element, ...children) => element.replaceChildren(...children.filter((child) => child !== null));

/** Sets a text only where it changes: selections and readers of screens stay where they are. */
function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

const unknown = (what) => make("p", {class: "unknown"}, what);
const known = (value) => value !== null && value !== undefined;
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const digits = (value, n) => (known(value) ? String(Number(Number(value).toPrecision(n))) : "–");

function milliseconds(ms) {
  if (!known(ms)) return "–";
  if (ms >= 10000) return digits(ms / 1000, 4) + " s";
  return (ms >= 100 ? ms.toFixed(0) : ms >= 10 ? ms.toFixed(1) : ms >= 1 ? ms.toFixed(2) : ms.toFixed(3)) + " ms";
}

function duration(seconds) {
  if (!known(seconds)) return "–";
  if (seconds < 90) return Math.round(seconds) + " s";
  const minutes = Math.round(seconds / 60);
  if (minutes < 90) return minutes + " min";
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? hours + " h " + (minutes % 60) + " min" : Math.floor(hours / 24) + " d " + (hours % 24) + " h";
}

/** "1 stage", "2 stages". */
function plural(count, one, many = one + "s") {
  return `${count} ${count === 1 ? one : many}`;
}

function bytes(count) {
  if (!known(count)) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  for (; count >= 1024 && unit < 4; ++unit) count /= 1024;
  return (unit === 0 ? count : count.toFixed(1)) + " " + units[unit];
}

const percent = (share) => (known(share) ? (100 * share).toFixed(1) + " %" : "–");
const signed = (share) => (share >= 0 ? "+" : "−") + Math.abs(100 * share).toFixed(1) + " %";

/** Rows of texts; the first column is a name. */
function table(columns, rows) {
  const row = (cells, tag) => make("tr", {}, ...cells.map((cell, i) => make(i === 0 && tag === "td" ? "th" : tag,
    tag === "th" ? {scope: "col"} : i === 0 ? {scope: "row"} : {}, cell)));
  return make("div", {class: "wide", tabindex: "0", role: "region", "aria-label": "Table"},
    make("table", {}, make("thead", {}, row(columns, "th")), make("tbody", {}, ...rows.map((cells) => row(cells, "td")))));
}
