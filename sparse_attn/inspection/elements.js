"use strict";

// Shared by the scripts of both pages.

function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

const visible = (token) => token.replace(/\n/g, "↵").replace(/\t/g, "→").replace(/ /g, "·") || "∅";

