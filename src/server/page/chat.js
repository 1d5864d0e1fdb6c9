// The chat: messages, streamed answers, settings, one text document for the next message.
import { call, streamed } from "./api.js";
import { byId, count, duration, element, several } from "./dom.js";

const MOST_BYTES = 8 * 1024 * 1024; // of a document

const log = byId("log");
const prompt = byId("prompt");
const messages = []; // {role, content, item: its element}
let attached = null; // {name, text}
let running = null; // AbortController of the answer under way

function announce(text) {
  byId("chat-status").textContent = text;
}

function follow(change) {
  const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
  change();
  if (atEnd) log.scrollTop = log.scrollHeight;
}

function updateButtons() {
  const busy = running !== null;
  byId("send").disabled = busy;
  byId("stop").disabled = !busy;
  byId("retry").disabled = busy || messages.length === 0;
  byId("clear").disabled = busy || messages.length === 0;
}

function describe(file) {
  return `${file.name} (${several(file.text.length, "character")})`;
}

function addMessage(role, content, shown, file) {
  const item = element("li", role);
  item.append(element("h3", "", role === "user" ? "You" : "Answer"));
  if (file) item.append(element("p", "document", describe(file)));
  const text = element("div", "text");
  text.append(document.createTextNode(shown));
  item.append(text);
  follow(() => log.append(item));
  if (role === "user") log.scrollTop = log.scrollHeight;
  const message = { role, content, item };
  messages.push(message);
  return message;
}

function requestBody() {
  const system = byId("system").value;
  const body = {
    messages: messages.filter(({ content }) => content !== "").map(({ role, content }) => ({ role, content })),
    stream: true,
    stream_options: { include_usage: true },
  };
  if (system.trim() !== "") body.messages.unshift({ role: "system", content: system });
  for (const input of document.querySelectorAll("#settings input[name]")) {
    if (input.value !== "") body[input.name] = Number(input.value);
  }
  return body;
}

function figuresOf(usage, times, finish) {
  const parts = [];
  if (times.first !== null) parts.push(`first token ${duration((times.first - times.begin) / 1e3)}`);
  const tokens = usage?.completion_tokens ?? 0;
  if (tokens > 1 && times.last > times.first) {
    parts.push(`${(((tokens - 1) * 1e3) / (times.last - times.first)).toFixed(1)} tokens/s`);
  }
  if (usage) {
    parts.push(several(tokens, "token"));
    const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
    parts.push(`prompt ${count(usage.prompt_tokens)}${cached > 0 ? `, ${count(cached)} cached` : ""}`);
  }
  if (finish === "length") parts.push("ended by the limit of tokens");
  if (finish === "stopped") parts.push("stopped");
  return parts.join(" · ");
}

async function answer() {
  const body = requestBody();
  const message = addMessage("assistant", "", "", null);
  const node = message.item.querySelector(".text").firstChild;
  const times = { begin: performance.now(), first: null, last: 0 };
  let usage = null;
  let finish = "";
  running = new AbortController();
  updateButtons();
  announce("Answering");
  log.setAttribute("aria-busy", "true");
  let failure = null;
  try {
    for await (const event of streamed(await call("v1/chat/completions", body, running.signal))) {
      if (event.error) throw new Error(event.error.message);
      usage = event.usage ?? usage;
      const choice = event.choices[0];
      if (choice === undefined) continue;
      finish = choice.finish_reason ?? finish;
      const text = choice.delta.content ?? "";
      if (text === "") continue;
      times.last = performance.now();
      times.first ??= times.last;
      message.content += text;
      follow(() => node.appendData(text));
    }
    if (finish === "") throw new Error("The connection ended before the answer did.");
  } catch (error) {
    if (error.name === "AbortError") finish = "stopped";
    else failure = error instanceof TypeError ? new Error("The server cannot be reached.") : error;
  }
  running = null;
  log.removeAttribute("aria-busy");
  follow(() => {
    if (failure) message.item.append(element("p", "error", failure.message));
    message.item.append(element("p", "figures", figuresOf(usage, times, finish)));
  });
  announce(failure ? `Failed: ${failure.message}` : finish === "stopped" ? "Stopped" : message.content.slice(0, 4000));
  updateButtons();
}

function send() {
  const text = prompt.value.trim();
  if (running !== null || text === "") return;
  if (!byId("ask").reportValidity()) return;
  addMessage("user", attached ? `${attached.text}\n\n${text}` : text, text, attached);
  prompt.value = "";
  attach(null);
  answer();
}

// Asks the latest question again; the settings may have changed.
function retry() {
  if (running !== null) return;
  while (messages.length > 0 && messages.at(-1).role === "assistant") messages.pop().item.remove();
  if (messages.length > 0) answer();
}

function clear() {
  messages.length = 0;
  log.replaceChildren();
  announce("New chat");
  updateButtons();
  prompt.focus();
}

function attach(file) {
  attached = file;
  byId("document").hidden = file === null;
  byId("document-name").textContent = file === null ? "" : describe(file);
}

async function readDocument(file) {
  if (file.size > MOST_BYTES) {
    announce(`${file.name} is too large.`);
    return `${file.name} has ${count(file.size)} bytes; at most ${count(MOST_BYTES)} are taken.`;
  }
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    if (text.includes("\0")) throw new TypeError("binary");
    attach({ name: file.name, text });
    announce(`${file.name} goes with the next message`);
    return "";
  } catch {
    return `${file.name} is no UTF-8 text.`;
  }
}

async function take(file) {
  const problem = await readDocument(file);
  const help = byId("prompt-help");
  help.classList.toggle("error", problem !== "");
  if (problem === "") return;
  help.textContent = problem;
  announce(problem);
}

export function startChat() {
  const section = byId("chat");
  byId("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  prompt.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  });
  section.addEventListener("keydown", (event) => {
    if (event.key === "Escape") running?.abort();
  });
  byId("stop").addEventListener("click", () => running?.abort());
  byId("retry").addEventListener("click", retry);
  byId("clear").addEventListener("click", clear);
  byId("attach").addEventListener("click", () => byId("file").click());
  byId("file").addEventListener("change", (event) => {
    if (event.target.files.length > 0) take(event.target.files[0]);
    event.target.value = "";
  });
  byId("remove").addEventListener("click", () => {
    attach(null);
    prompt.focus();
  });
  // A file dropped elsewhere must not replace the page.
  for (const name of ["dragover", "drop"]) window.addEventListener(name, (event) => event.preventDefault());
  section.addEventListener("dragover", () => section.classList.add("drop"));
  section.addEventListener("dragleave", (event) => {
    if (!section.contains(event.relatedTarget)) section.classList.remove("drop");
  });
  section.addEventListener("drop", (event) => {
    section.classList.remove("drop");
    if (event.dataTransfer.files.length > 0) take(event.dataTransfer.files[0]);
  });
}
