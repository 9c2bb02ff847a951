"use strict";

// Shared by the scripts of both pages.

function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

const visible = (token) => token.replace(/\n/g, "↵").replace(/\t/g, "→").replace(/ /g, "·") || "∅";


// ---- files

function save(name, type, content) {
  const link = make("a", { href: URL.createObjectURL(new Blob([content], { type })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

function saveCsv(name, columns, rows) {
  const quoted = (cell) => (typeof cell === "string" ? `"${cell.replace(/"/g, '""')}"` : cell);
  const lines = [columns, ...rows.map((row) => row.map(quoted))].map((cells) => `${cells.join(",")}\n`);
  save(`${name}.csv`, "text/csv", lines.join(""));
}

/** Text for an SVG, which may hold no control characters. */
const escaped = (text) =>
  text.replace(/[\0-\x1f]/g, "\ufffd").replace(/[&<>"]/g, (char) => `&#${char.charCodeAt(0)};`);

function saveSvg(name, width, height, content) {
  save(`${name}.svg`, "image/svg+xml",
    `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" font-family="sans-serif" ` +
    `font-size="13"><rect width="100%" height="100%" fill="#fff"/>${content}</svg>\n`);
}
