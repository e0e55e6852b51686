// What the server is made of: the device, its memory, what was decided, and who serves each slot.

import { getJson } from "/ui/api.js";
import { byId, el } from "/ui/dom.js";

const MIB = 2 ** 20;
const MEMORY = { weights: "Taken by weights", kv_cache: "Taken by KV cache" };
const SHOWN = ["platform", "dtype", "quantization", "kv_cache_dtype", "block_size", "max_num_seqs", "max_num_batched_tokens", "scheduling_policy", "enable_prefix_caching"];

/** Read /server_info and show it. */
export async function show() {
  const place = byId("platform");
  try {
    place.replaceChildren(...cards(await getJson("/server_info")));
  } catch (error) {
    place.replaceChildren(el("p.note", {}, `Cannot read /server_info: ${error.message}`));
  }
}

function cards(info) {
  const { facts, config } = info;
  const total = Object.values(info.startup_s).reduce((sum, seconds) => sum + seconds, 0);
  return [
    card("Model and engine", list({
      Model: info.models.join(", "),
      "Longest sequence": `${info.max_model_len.toLocaleString("en")} tokens`,
      Vocabulary: info.vocab_size.toLocaleString("en"),
      "Tool calls": info.tool_call_parser || "none",
      Reasoning: info.reasoning_parser || "none",
      Version: info.version,
      Restarts: info.num_restarts,
    })),
    card("Device", list({
      Name: facts.name,
      Architecture: facts.arch,
      "Compute units": facts.compute_units,
      "Memory in all": facts.memory_bytes ? mib(facts.memory_bytes) : undefined,
      Features: facts.features?.join(", "),
      ...Object.fromEntries(Object.entries(info.memory_bytes).map(([name, size]) => [MEMORY[name] || name, mib(size)])),
      "KV cache blocks": info.num_blocks.toLocaleString("en"),
    })),
    card("Configuration", list(Object.fromEntries(SHOWN.map((name) => [name, config[name]])))),
    card(`Start-up, ${total.toFixed(2)} s`, list(Object.fromEntries(
      Object.entries(info.startup_s).map(([name, seconds]) => [name, `${seconds.toFixed(3)} s`])))),
    wide("Who serves which operation", decisions(info.decisions)),
    ...(info.changes.length ? [wide("Decided at start-up", changes(info.changes))] : []),
  ];
}

function card(title, ...children) {
  return el("section.card", {}, el("h2", {}, title), ...children);
}

function wide(title, ...children) {
  return el("section.card.wide", {}, el("h2", {}, title), el("div.scroll", { tabindex: "0", role: "region", "aria-label": title }, ...children));
}

function list(entries) {
  const rows = Object.entries(entries).filter(([, value]) => value !== undefined && value !== "" && value !== null);
  return el("dl", {}, ...rows.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, String(value))]));
}

function decisions(found) {
  return grid(["Operation", "Served by", "Why, and who else was asked"], found.map((decision) => [
    el("div", {}, decision.slot, el("div.spec", {}, decision.spec)),
    el("div", {}, `${decision.chosen} `, decision.native ? null : el("span.tag.warn", {}, "not native")),
    el("div", {}, decision.reason,
      ...Object.entries(decision.others).map(([name, reason]) => el("div.no", {}, `${name}: ${reason}`))),
  ]));
}

function changes(found) {
  return grid(["Option", "Value", "Why"], found.map(({ field, value, reason }) => [
    el("code", {}, field), String(value), reason,
  ]));
}

function grid(header, rows) {
  return el("table", {},
    el("thead", {}, el("tr", {}, ...header.map((title) => el("th", { scope: "col" }, title)))),
    el("tbody", {}, ...rows.map((cells) => el("tr", {}, ...cells.map((cell) => el("td", {}, cell))))));
}

const mib = (size) => `${Math.round(size / MIB).toLocaleString("en")} MiB`;
