// Talks to the server. The key lives in this module's memory alone.

let key = "";

export function setKey(value) {
  key = value.trim();
}

function headers(more = {}) {
  return key ? { ...more, authorization: `Bearer ${key}` } : more;
}

/** An answer that is an error, with the server's own words. */
export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function checked(response) {
  if (response.ok) return response;
  let message = `HTTP ${response.status}`;
  try {
    message = (await response.json()).error.message || message;
  } catch {
    // The status alone has to do.
  }
  throw new ApiError(response.status, message);
}

export async function getJson(path) {
  return (await checked(await fetch(path, { headers: headers() }))).json();
}

export async function getText(path) {
  return (await checked(await fetch(path, { headers: headers() }))).text();
}

/** Post a request and yield the parsed data of each event, until `[DONE]`. */
export async function* stream(path, body, signal) {
  const response = await checked(
    await fetch(path, {
      method: "POST",
      headers: headers({ "content-type": "application/json" }),
      body: JSON.stringify(body),
      signal,
    }),
  );
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new ApiError(0, "the answer broke off");
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data:")) continue;
      const data = line.slice(5).trim();
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw new ApiError(0, event.error.message || String(event.error));
      yield event;
    }
  }
}
