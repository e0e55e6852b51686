// Reads the text format of Prometheus and keeps what the gauges need over time.

const SAMPLE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;

/** Parse an exposition into `{name: [{labels, value}]}`. */
export function parse(text) {
  const found = {};
  for (const line of text.split("\n")) {
    const match = line[0] === "#" ? null : SAMPLE.exec(line);
    if (!match) continue;
    const labels = {};
    for (const [, name, value] of (match[2] || "").matchAll(LABEL)) labels[name] = value;
    (found[match[1]] ||= []).push({ labels, value: Number(match[3]) });
  }
  return found;
}

/** Sum a metric's samples; undefined if there is none. */
export function value(found, name) {
  return found[name]?.reduce((sum, sample) => sum + sample.value, 0);
}

/** Return a histogram as `[{to, count}]`, not cumulative. */
export function buckets(found, name) {
  const totals = new Map();
  for (const { labels, value: count } of found[`${name}_bucket`] || []) {
    const to = labels.le === "+Inf" ? Infinity : Number(labels.le);
    totals.set(to, (totals.get(to) || 0) + count);
  }
  let before = 0;
  return [...totals]
    .sort((a, b) => a[0] - b[0])
    .map(([to, total]) => {
      const count = total - before;
      before = total;
      return { to, count };
    });
}

/** Return how much each bucket has grown; a count that shrank began anew. */
export function grown(now, then) {
  return now.map(({ to, count }, i) => {
    const before = then[i]?.count || 0;
    return { to, count: count >= before ? count - before : count };
  });
}

/** Estimate a quantile, linear within its bucket; undefined without counts. */
export function quantile(list, q) {
  const total = list.reduce((sum, { count }) => sum + count, 0);
  if (!total) return undefined;
  let below = 0;
  let from = 0;
  for (const { to, count } of list) {
    if (below + count >= q * total && count) {
      return to === Infinity ? from : from + ((to - from) * (q * total - below)) / count;
    }
    below += count;
    from = to;
  }
  return from;
}
