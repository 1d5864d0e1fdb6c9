// The latest plan: workers down, time in the cost model across, coloured by request.
import { bytes, colourOf, count, label, picture, several, shape } from "./dom.js";

const MOST_HEIGHT = 260;
const LEFT = 26;
const AXIS = 18;

export function drawTimeline(timeline, width) {
  if (timeline.workers === 0) return null;
  const column = Object.fromEntries(timeline.fields.map((name, i) => [name, i]));
  const pitch = Math.min(22, Math.max(1, MOST_HEIGHT / timeline.workers));
  const height = pitch * timeline.workers;
  const scale = (width - LEFT) / Math.max(timeline.longest, 1);
  const requests = new Set(timeline.items.map((row) => row[column.request]));
  requests.delete(0);
  const svg = picture(width, height + AXIS,
    `Plan: ${several(timeline.items.length, "item")} of ${several(requests.size, "request")} on ` +
    several(timeline.workers, "worker"));
  for (const row of timeline.items) {
    const together = row[column.requests] > 1;
    const who = together ? several(row[column.requests], "request") : `request ${row[column.request]}`;
    const box = shape("rect", {
      x: LEFT + row[column.begin] * scale, y: row[column.worker] * pitch,
      width: Math.max(row[column.cost] * scale, 0.5), height: pitch > 4 ? pitch - 1 : pitch,
      class: pitch > 4 ? (together ? "box shared" : "box own") : together ? "shared" : "own",
    }, `worker ${row[column.worker]}: ${who}, KV head ${row[column.head]}, ` +
       `${several(row[column.query_tokens], "query token")} over ${several(row[column.kv_tokens], "token")}`);
    if (!together) box.style.fill = colourOf(row[column.request]);
    svg.append(box);
  }
  const even = LEFT + (timeline.cost / timeline.workers) * scale;
  svg.append(shape("line", { x1: even, x2: even, y1: 0, y2: height, class: "even" }, "an even share"));
  const step = Math.max(1, Math.ceil(14 / pitch));
  for (let worker = 0; worker < timeline.workers; worker += step) {
    svg.append(label(LEFT - 6, pitch * (worker + 0.5) + 4, count(worker), "end"));
  }
  svg.append(label(LEFT, height + 13, "0"));
  svg.append(label(width, height + 13, bytes(timeline.longest), "end"));
  return svg;
}
