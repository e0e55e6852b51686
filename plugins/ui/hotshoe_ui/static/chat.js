// The conversation: sends messages, streams answers, stops, asks again.

import { stream } from "/ui/api.js";
import { byId, el } from "/ui/dom.js";
import { Answer, fixed } from "/ui/message.js";
import { fields, systemMessages } from "/ui/settings.js";

const EXAMPLES = ["Hello! Who are you?", "What is 12 plus 30?", "Name three colours."];

// What was said, without the system prompt. Each entry: {message, node}.
let turns = [];
let running = null;

/** Wire the composer up. */
export function prepare() {
  const prompt = byId("prompt");
  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    say();
  });
  prompt.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      say();
    }
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !byId("key-dialog").open) running?.abort();
  });
  byId("stop").addEventListener("click", () => running?.abort());
  byId("clear").addEventListener("click", clear);
  byId("again").addEventListener("click", again);
  byId("examples").append(...EXAMPLES.map((text) => el("button", { type: "button", onclick: () => {
    prompt.value = text;
    say();
  } }, text)));
}

function say() {
  const prompt = byId("prompt");
  const text = prompt.value.trim();
  if (!text || running) return;
  prompt.value = "";
  add({ role: "user", content: text }, fixed("user", text));
  answer();
}

function add(message, node) {
  byId("welcome").hidden = true;
  turns.push({ message, node });
  byId("log").append(node);
  scroll(true);
}

function clear() {
  running?.abort();
  for (const { node } of turns) node.remove();
  turns = [];
  byId("welcome").hidden = false;
  controls();
  byId("prompt").focus();
}

function again() {
  while (turns.length && turns.at(-1).message.role === "assistant") turns.pop().node.remove();
  if (turns.length) answer();
}

async function answer() {
  let body;
  try {
    body = { ...fields(), messages: [...systemMessages(), ...turns.map(({ message }) => message)] };
  } catch (error) {
    notice(error.message, true);
    return;
  }
  const shown = new Answer(Boolean(body.response_format));
  const own = (running = new AbortController());
  const turn = { message: null, node: shown.node };
  const asked = turns;
  turns.push(turn);
  byId("log").append(shown.node);
  scroll(true);
  controls();
  notice("");
  let fault = "";
  try {
    const events = stream("/v1/chat/completions", { ...body, stream: true, stream_options: { include_usage: true } }, own.signal);
    for await (const event of events) {
      shown.take(event);
      scroll(false);
    }
  } catch (error) {
    fault = own.signal.aborted ? "" : error.message;
    shown.finish = own.signal.aborted ? "you" : "a failure";
  }
  turn.message = shown.message();
  shown.end(fault, (call, text) => giveResult(call, text));
  if (running === own) running = null;
  // An answer without content cannot be sent back; nor can one of a conversation that was cleared.
  if (asked === turns && fault && !shown.content) turns.splice(turns.indexOf(turn), 1);
  controls();
  scroll(false);
}

/** Send a tool's result, and let the model go on once every call has one. */
function giveResult(call, text) {
  add({ role: "tool", tool_call_id: call.id, content: text }, fixed("tool", text));
  const given = turns.filter(({ message }) => message.role === "tool").map(({ message }) => message.tool_call_id);
  const wanted = turns.flatMap(({ message }) => (message.tool_calls || []).map(({ id }) => id));
  if (wanted.every((id) => given.includes(id)) && !running) answer();
}

function controls() {
  const busy = running !== null;
  byId("send").hidden = busy;
  byId("stop").hidden = !busy;
  byId("again").disabled = busy || !turns.length;
  byId("clear").disabled = !turns.length;
}

function notice(text, bad = false) {
  byId("notice").textContent = text;
  byId("notice").classList.toggle("bad", bad);
}

/** Follow the text, unless the reader has scrolled up. */
function scroll(always) {
  const log = byId("log");
  const follow = always || log.scrollHeight - log.scrollTop - log.clientHeight < 120;
  if (follow) requestAnimationFrame(() => log.scrollTo({ top: log.scrollHeight, behavior: "instant" }));
}
