// Requests to the server this page came from. An API key is asked for when the server wants one and lives in this module.

let key = "";
let asking = null; // the promise of a key, while the dialog is open
let keySource = null;

// source: () => Promise of a key, or of null when the user has none.
export function setKeySource(source) {
  keySource = source;
}

export class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

async function newKey(refused) {
  if (key !== refused) return; // another request has asked meanwhile
  asking ??= keySource().finally(() => (asking = null));
  const answer = await asking;
  if (answer === null) throw new ApiError("The server asks for an API key.", 401);
  key = answer;
}

async function messageOf(response) {
  const text = await response.text();
  try {
    return JSON.parse(text).error.message;
  } catch {
    return `The server answered ${response.status}: ${text.slice(0, 200)}`;
  }
}

// GET, or POST of a body as JSON. Throws ApiError for what is no success, TypeError when the server cannot be reached.
export async function call(path, body = undefined, signal = undefined) {
  for (;;) {
    const used = key;
    const headers = {};
    if (used !== "") headers.Authorization = `Bearer ${used}`;
    if (body !== undefined) headers["Content-Type"] = "application/json";
    const response = await fetch(path, {
      method: body === undefined ? "GET" : "POST",
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
      cache: "no-store",
      credentials: "omit",
    });
    if (response.ok) return response;
    if (response.status !== 401) throw new ApiError(await messageOf(response), response.status);
    await newKey(used);
  }
}

// What follows "data: " of each event of a stream, parsed; ends at [DONE].
export async function* streamed(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let pending = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      pending += value;
      for (let end = pending.indexOf("\n\n"); end >= 0; end = pending.indexOf("\n\n")) {
        const event = pending.slice(0, end);
        pending = pending.slice(end + 2);
        if (!event.startsWith("data: ")) continue;
        const data = event.slice(6);
        if (data === "[DONE]") return;
        yield JSON.parse(data);
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
