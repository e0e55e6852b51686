// Shows what a model writes: code in its boxes, all else as it is. Never parses markup.

import { el } from "/ui/dom.js";

const FENCE = /\s*```([\w+-]*)\n?([\s\S]*?)(?:```\s*|$)/g;
const INLINE = /`([^`\n]+)`|\*\*([^*\n]+)\*\*/g;

/** Return the nodes that show a text. */
export function render(text) {
  const nodes = [];
  let end = 0;
  for (const match of text.matchAll(FENCE)) {
    nodes.push(...inline(text.slice(end, match.index)));
    nodes.push(el("pre", {}, match[2].replace(/\n$/, "")));
    end = match.index + match[0].length;
  }
  nodes.push(...inline(text.slice(end)));
  return nodes;
}

function inline(text) {
  const nodes = [];
  let end = 0;
  for (const match of text.matchAll(INLINE)) {
    nodes.push(text.slice(end, match.index), match[1] ? el("code", {}, match[1]) : el("strong", {}, match[2]));
    end = match.index + match[0].length;
  }
  nodes.push(text.slice(end));
  return nodes.filter((node) => node !== "");
}

/** Indent a text if it is JSON, else return it as it is. */
export function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
