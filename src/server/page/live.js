// The live view: asks for /engine.json while the page is looked at, and draws it.
import { ApiError, call } from "./api.js";
import { byId, bytes, colourOf, count, duration, element, picture, several, shape } from "./dom.js";
import { Rates } from "./rates.js";
import { drawTimeline } from "./timeline.js";
import { drawTree } from "./tree.js";

const BUSY_MS = 500;
const IDLE_MS = 1500;
const POINTS = 120; // of the curve of tokens a second

const rates = new Rates();
const curve = [];
let paused = false;
let latest = null;
let wake = () => {};

const dash = (value, format) => (value === null ? "–" : format(value));

// A figure is made once, so that a screen reader keeps its place.
function figure(name, text) {
  const id = `figure-${name.replace(/\W+/g, "-").toLowerCase()}`;
  let value = byId(id);
  if (value === null) {
    const box = element("div");
    value = element("dd");
    value.id = id;
    box.append(element("dt", "", name), value);
    byId("figures").append(box);
  }
  value.textContent = text;
  return value;
}

function showFigures(view) {
  figure("Running", count(view.requests.running));
  figure("Waiting", count(view.requests.waiting));
  const speed = rates.tokensPerSecond();
  const value = figure("Tokens a second", dash(speed, (one) => (one < 100 ? one.toFixed(1) : count(Math.round(one)))));
  curve.push(speed ?? 0);
  if (curve.length > POINTS) curve.shift();
  const most = Math.max(...curve, 1);
  const svg = picture(110, 22, "Tokens a second over time");
  const points = curve.map((one, i) => `${((i + POINTS - curve.length) * 110) / (POINTS - 1)},${21 - (one / most) * 20}`);
  svg.append(shape("polyline", { points: points.join(" "), class: "spark" }));
  value.append(svg);
  figure("First token, median", dash(rates.quantile("first", 0.5), duration));
  figure("Token gap, median", dash(rates.quantile("gap", 0.5), duration));
  figure("Token gap, p99", dash(rates.quantile("gap", 0.99), duration));
  const { prompt, cached, generated } = view.tokens;
  figure("Prompts cached", dash(prompt > 0 ? cached / prompt : null, (one) => `${(one * 100).toFixed(0)} %`));
  figure("Tokens generated", count(generated));
  const { bytes_read, bytes_unshared } = view.kv;
  figure("KV reads saved", dash(bytes_read > 0 ? bytes_unshared / bytes_read : null, (one) => `${one.toFixed(2)} x`));
}

function showPools(view, width) {
  byId("pools").replaceChildren(...view.kv.pools.map((pool) => {
    const kinds = [["shared", pool.shared], ["own", pool.used - pool.shared], ["cached", pool.cached], ["free", pool.free]];
    const words = kinds.map(([name, pages]) => `${count(pages)} ${name === "own" ? "used by one request" : name}`);
    const box = element("div");
    if (view.kv.pools.length > 1) {
      const window = pool.window_tokens > 0 ? `a window of ${count(pool.window_tokens)} tokens` : "all tokens";
      box.append(element("p", "help", `Layers that keep ${window}`));
    }
    const svg = picture(width, 14, `KV pages: ${words.join(", ")} of ${count(pool.total)}`);
    let x = 0;
    for (const [name, pages] of kinds) {
      // What is there at all can be seen.
      const length = pages === 0 ? 0 : Math.max((pages / pool.total) * width, 2);
      svg.append(shape("rect", { x, y: 0, width: Math.max(Math.min(length, width - x), 0), height: 14, class: name }));
      x += length;
    }
    const legend = element("ul", "legend");
    kinds.forEach(([name], i) => {
      const entry = element("li");
      entry.append(element("span", `swatch ${name}`), words[i]);
      legend.append(entry);
    });
    legend.append(element("li", "", `${count(pool.total)} of ${bytes(pool.page_bytes)} each`));
    box.append(svg, legend);
    return box;
  }));
}

function showRequests(view) {
  const { list, left_out } = view.requests;
  byId("requests").replaceChildren(...list.map((request) => {
    const row = element("tr");
    const name = element("th");
    name.scope = "row";
    const swatch = element("span", "swatch");
    swatch.style.setProperty("--colour", colourOf(request.id));
    name.append(swatch, request.choice > 0 ? `${request.id}.${request.choice}` : `${request.id}`);
    const reading = request.state === "running" && request.computed_tokens < request.prompt_tokens;
    const state = reading ? `reads prompt ${Math.floor((100 * request.computed_tokens) / request.prompt_tokens)} %` : request.state;
    row.append(name, element("td", "", state));
    for (const text of [count(request.prompt_tokens), count(request.cached_tokens),
      `${count(request.generated_tokens)} of ${count(request.max_tokens)}`, count(request.pages),
      count(request.shared_pages), duration(request.seconds)]) row.append(element("td", "", text));
    return row;
  }));
  byId("requests-note").textContent =
    list.length === 0 ? "No request now." : left_out > 0 ? `... and ${count(left_out)} more` : "";
}

function showPicture(name, svg, note) {
  const holder = byId(name);
  if (svg === null) holder.replaceChildren();
  else holder.replaceChildren(svg);
  byId(`${name}-note`).textContent = note;
}

function treeNote({ prefixes }) {
  if (prefixes.nodes.length === 0) return "Nothing is cached yet.";
  return prefixes.left_out > 0 ? `The latest ${several(prefixes.nodes.length, "node")}; ${count(prefixes.left_out)} more.` : "";
}

function timelineNote({ timeline: plan }) {
  if (plan.workers === 0) return "No plan yet.";
  const even = plan.cost / plan.workers;
  return `Time in the cost model, as bytes read; the slowest worker takes ${(plan.longest / Math.max(even, 1)).toFixed(2)} x an even ` +
    `share (dashed). Reads ${bytes(plan.kv_bytes)} of KV a layer, ${bytes(plan.kv_bytes_unshared)} if nothing were shared.` +
    (plan.left_out > 0 ? ` ${count(plan.left_out)} small items are not drawn.` : "");
}

function show(view) {
  latest = view;
  const width = Math.max(byId("tree").clientWidth, 120);
  byId("model").textContent = `${view.model} · context ${count(view.max_model_len)} tokens · version ${view.version}`;
  showFigures(view);
  showPools(view, width);
  showRequests(view);
  showPicture("tree", drawTree(view, width), treeNote(view));
  showPicture("timeline", drawTimeline(view.timeline, width), timelineNote(view));
}

function setProblem(text) {
  const status = byId("engine-status");
  if (status.textContent !== text) status.textContent = text;
  status.hidden = text === "";
}

function setPaused(value) {
  paused = value;
  byId("pause").setAttribute("aria-pressed", String(value));
  wake();
}

// Resolves after the time, or when something changed.
function pauseFor(ms) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    wake = () => {
      clearTimeout(timer);
      resolve();
    };
  });
}

export async function startLiveView() {
  byId("pause").addEventListener("click", () => setPaused(!paused));
  document.addEventListener("visibilitychange", () => wake());
  window.addEventListener("resize", () => latest && show(latest));
  for (;;) {
    let wait = IDLE_MS;
    if (!paused && document.visibilityState === "visible") {
      try {
        const view = await (await call("engine.json")).json();
        rates.add(view);
        show(view);
        setProblem(view.healthy ? "" : "The engine has failed; restart the server.");
        if (view.requests.running + view.requests.waiting > 0) wait = BUSY_MS;
      } catch (error) {
        setProblem(error instanceof TypeError ? "The server cannot be reached; trying again." : error.message);
        if (error instanceof ApiError && error.status === 401) setPaused(true); // Pause again asks again
      }
    }
    await pauseFor(wait);
  }
}
