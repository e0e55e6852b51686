// One message on the page: text, reasoning, tool calls, and what is known about its making.

import { el } from "/ui/dom.js";
import { pretty, render } from "/ui/text.js";

const NAMES = { user: "You", assistant: "Model", tool: "Tool" };

/** A message of the user or of a tool. */
export function fixed(role, text) {
  const body = el("div.text");
  body.append(...(role === "tool" ? [el("pre", {}, pretty(text))] : render(text)));
  return el(`article.message.${role}`, {}, el("div.who", {}, NAMES[role]), body);
}

/** An answer that grows while it is streamed. Draws at most once a frame. */
export class Answer {
  constructor(asJson) {
    this.asJson = asJson;
    this.content = "";
    this.reasoning = "";
    this.calls = [];
    this.finish = null;
    this.usage = null;
    this.sent = performance.now();
    this.first = null;
    this.last = null;
    this.pending = false;
    this.ended = false;
    this.thoughts = el("details", { hidden: true }, el("summary", {}, "Reasoning"), el("div.text"));
    this.text = el("div.text");
    this.tools = el("div");
    this.about = el("div.about");
    this.node = el("article.message.assistant.waiting", { "aria-busy": "true" },
      el("div.who", {}, NAMES.assistant), this.thoughts, this.text, this.tools, this.about);
  }

  /** Take one event of the stream. */
  take(event) {
    if (event.usage) this.usage = event.usage;
    const choice = event.choices?.[0];
    if (!choice) return;
    const delta = choice.delta || {};
    const reasoning = delta.reasoning_content || delta.reasoning || "";
    if (delta.content || reasoning || delta.tool_calls) {
      this.last = performance.now();
      this.first ??= this.last;
    }
    this.content += delta.content || "";
    this.reasoning += reasoning;
    for (const part of delta.tool_calls || []) this.takeCall(part);
    this.finish = choice.finish_reason || this.finish;
    this.schedule();
  }

  takeCall(part) {
    const call = (this.calls[part.index ?? 0] ||= {
      id: "", type: "function", function: { name: "", arguments: "" },
    });
    call.id = part.id || call.id;
    call.function.name += part.function?.name || "";
    call.function.arguments += part.function?.arguments || "";
  }

  schedule() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => {
      this.pending = false;
      if (!this.ended) this.draw();
    });
  }

  draw() {
    if (this.node.classList.contains("waiting") && this.first !== null) {
      this.node.classList.replace("waiting", "running");
    }
    this.thoughts.hidden = !this.reasoning;
    this.thoughts.lastChild.textContent = this.reasoning;
    this.text.replaceChildren(...render(this.content));
    this.tools.replaceChildren(...this.calls.map(showCall));
  }

  /** Draw for the last time; `onResult(call, text)` is offered for each tool call. */
  end(fault, onResult) {
    this.node.classList.remove("waiting", "running");
    this.node.removeAttribute("aria-busy");
    this.ended = true;
    this.draw();
    if (this.asJson && this.content.trim()) {
      this.text.replaceChildren(el("pre", {}, pretty(this.content)));
    }
    if (fault) this.node.append(el("div.fault", { role: "alert" }, fault));
    else if (onResult) this.tools.replaceChildren(...this.calls.map((call) => showCall(call, onResult)));
    this.about.textContent = this.summary();
  }

  summary() {
    const parts = [];
    const tokens = this.usage?.completion_tokens;
    if (tokens !== undefined) parts.push(`${tokens} ${tokens === 1 ? "token" : "tokens"}`);
    if (this.first !== null) parts.push(`first after ${Math.round(this.first - this.sent)} ms`);
    if (tokens > 1 && this.last > this.first) {
      parts.push(`${((1000 * (tokens - 1)) / (this.last - this.first)).toFixed(1)} tokens/s`);
    }
    if (this.finish && this.finish !== "stop") parts.push(`ended by ${this.finish}`);
    return parts.join(" · ");
  }

  /** Return it as a message of the conversation. */
  message() {
    const calls = this.calls.filter(Boolean);
    return { role: "assistant", content: this.content || null, ...(calls.length ? { tool_calls: calls } : {}) };
  }
}

function showCall(call, onResult) {
  const card = el("div.call", {},
    el("header", {}, "calls ", el("b", {}, call.function.name)),
    el("pre", {}, pretty(call.function.arguments)));
  if (onResult instanceof Function) {
    const input = el("input", { "aria-label": `Result of ${call.function.name}`, placeholder: "Result of the call, then Enter" });
    input.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && input.value.trim()) {
        input.disabled = true;
        onResult(call, input.value);
      }
    });
    card.append(el("div.row", {}, input));
  }
  return card;
}
