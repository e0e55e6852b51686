// Live gauges, read from /metrics every second while the page is seen.

import { getText } from "/ui/api.js";
import { histogram, sparkline } from "/ui/charts.js";
import { byId, el } from "/ui/dom.js";
import { buckets, grown, parse, quantile, value } from "/ui/metrics.js";

const PERIOD_MS = 1000;
const KEPT = 60;
const HISTOGRAMS = {
  ttft: ["Time to first token", "hotshoe_time_to_first_token_seconds"],
  itl: ["Between tokens", "hotshoe_inter_token_latency_seconds"],
};

const rates = [];
// Scrapes of the last minute: `{moment, found}`.
const scrapes = [];

/** Poll forever; report the engine's state to `onState(kind, text)`. */
export async function watch(onState) {
  for (;;) {
    if (!document.hidden) await scrape(onState);
    await new Promise((resolve) => setTimeout(resolve, PERIOD_MS));
  }
}

async function scrape(onState) {
  let found;
  try {
    found = parse(await getText("/metrics"));
  } catch (error) {
    fail(error, onState);
    return;
  }
  const last = scrapes.at(-1);
  const now = { moment: performance.now(), found };
  scrapes.push(now);
  while (scrapes.length > KEPT) scrapes.shift();
  if (last) rates.push(rate(last, now, "hotshoe_generated_tokens_total"));
  while (rates.length > KEPT) rates.shift();
  draw(found);
  onState(...state(found));
}

function fail(error, onState) {
  const note = byId("live-note");
  note.hidden = false;
  if (error.status === 404) {
    note.textContent = "No metrics here: install hotshoe-observability, or start without --no-metrics.";
    onState("good", "running");
  } else if (error.status === 401) {
    note.textContent = "The server wants an API key.";
    onState("warn", "needs a key");
  } else {
    note.textContent = `No metrics: ${error.message}`;
    onState("bad", "not reachable");
  }
}

function state(found) {
  if (!value(found, "hotshoe_engine_up")) return ["bad", "engine down"];
  if (value(found, "hotshoe_engine_sleeping")) return ["warn", "sleeping"];
  if (value(found, "hotshoe_engine_paused")) return ["warn", "paused"];
  return ["good", "ready"];
}

function rate(before, after, name) {
  const grew = value(after.found, name) - value(before.found, name);
  // A total that shrank began anew; a missing one is no rate at all.
  return grew >= 0 ? (1000 * grew) / (after.moment - before.moment) : 0;
}

function draw(found) {
  byId("live-note").hidden = true;
  const usage = value(found, "hotshoe_kv_cache_usage_ratio");
  const fill = el("div");
  fill.style.width = `${100 * (usage || 0)}%`;
  const current = rates.at(-1) || 0;
  byId("live").replaceChildren(
    gauge("Generated", number(current), "tokens/s", true, sparkline(rates, KEPT, `tokens per second over a minute, now ${number(current)}`)),
    gauge("Running", number(value(found, "hotshoe_requests_running"))),
    gauge("Waiting", number(value(found, "hotshoe_requests_waiting"))),
    gauge("KV cache in use", usage === undefined ? "–" : (100 * usage).toFixed(1), "%", true, el("div.meter", {}, fill)),
    ...Object.keys(HISTOGRAMS).map((name) => spread(name, found)),
  );
}

/** Show a latency over the last minute, or since the start where nothing ran in it. */
function spread(name, found) {
  const [title, metric] = HISTOGRAMS[name];
  const all = buckets(found, metric);
  const recent = grown(all, buckets(scrapes[0].found, metric));
  const lively = recent.some(({ count }) => count);
  const list = lively ? recent : all;
  const filled = list.map(({ count }, i) => (count ? i : -1)).filter((i) => i >= 0);
  const [from, to] = filled.length ? [Math.max(0, filled[0] - 1), Math.min(filled.at(-1) + 1, list.length - 2)] : [0, 5];
  const shown = list.slice(from, Math.max(to, from) + 1);
  const median = quantile(list, 0.5);
  const tail = quantile(list, 0.99);
  const label = median === undefined ? `${title}: nothing yet` : `${title}: median ${time(median)}, 99th percentile ${time(tail)}`;
  const axis = el("div.axis", {}, el("span", {}, shown.length ? `≤ ${time(shown[0].to)}` : ""), el("span", {}, shown.length ? time(shown.at(-1).to) : ""));
  const scope = lively ? "p50, last minute" : "p50";
  return gauge(title, median === undefined ? "–" : time(median), median === undefined ? "" : `${scope} · p99 ${time(tail)}`, true, histogram(shown, label), axis);
}

function gauge(name, text, unit = "", wide = false, ...more) {
  return el(
    wide ? "div.gauge.wide" : "div.gauge", {},
    el("div.name", {}, name),
    el("div.value", {}, text, unit ? el("span.unit", {}, unit) : null),
    ...more,
  );
}

function number(amount) {
  if (amount === undefined) return "–";
  return amount < 100 && amount % 1 ? amount.toFixed(1) : Math.round(amount).toLocaleString("en");
}

function time(seconds) {
  if (seconds === Infinity) return "∞";
  if (seconds < 0.1) return `${(1000 * seconds).toFixed(seconds < 0.01 ? 1 : 0)} ms`;
  return seconds < 1 ? `${Math.round(1000 * seconds)} ms` : `${seconds.toFixed(1)} s`;
}
