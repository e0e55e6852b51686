// Small charts as SVG, stretched to their box.

import { svg } from "/ui/dom.js";

const WIDTH = 100;
const HEIGHT = 40;

function frame(label, ...children) {
  return svg(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": label },
    svg("line", { class: "base", x1: 0, x2: WIDTH, y1: HEIGHT, y2: HEIGHT }),
    ...children,
  );
}

/** Draw the latest `length` numbers, newest at the right. */
export function sparkline(numbers, length, label) {
  const most = Math.max(...numbers, 1e-9);
  const x = (i) => (WIDTH * (length - numbers.length + i)) / (length - 1);
  const y = (number) => HEIGHT - (HEIGHT - 3) * (number / most);
  const points = numbers.map((number, i) => `${x(i).toFixed(2)},${y(number).toFixed(2)}`);
  if (points.length < 2) return frame(label);
  const area = `${x(0)},${HEIGHT} ${points.join(" ")} ${WIDTH},${HEIGHT}`;
  return frame(
    label,
    svg("polygon", { class: "area", points: area }),
    svg("polyline", { class: "line", points: points.join(" ") }),
  );
}

/** Draw buckets as bars of equal width. */
export function histogram(list, label) {
  const most = Math.max(...list.map(({ count }) => count), 1e-9);
  const width = WIDTH / Math.max(list.length, 1);
  const bars = list.map(({ count }, i) => {
    const height = count ? Math.max(1.5, (HEIGHT - 2) * (count / most)) : 0;
    return svg("rect", {
      class: "bar", x: i * width + width * 0.1, y: HEIGHT - height, width: width * 0.8, height,
    });
  });
  return frame(label, ...bars);
}
