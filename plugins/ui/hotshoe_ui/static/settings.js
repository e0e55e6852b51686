// The form of settings, read into fields of a request.

import { byId } from "/ui/dom.js";

const TOOLS = [
  {
    type: "function",
    function: {
      name: "get_weather",
      description: "Get the current weather of a city",
      parameters: {
        type: "object",
        properties: { city: { type: "string" } },
        required: ["city"],
      },
    },
  },
];
const SCHEMA = {
  type: "object",
  properties: { name: { type: "string" }, age: { type: "integer" } },
  required: ["name", "age"],
  additionalProperties: false,
};

/** Fill the form in and keep its parts in step. */
export function prepare() {
  byId("tools").value = JSON.stringify(TOOLS, null, 2);
  byId("schema").value = JSON.stringify(SCHEMA, null, 2);
  for (const id of ["temperature", "top_p"]) {
    const show = () => (byId(`${id}-value`).value = Number(byId(id).value).toFixed(2));
    byId(id).addEventListener("input", show);
    show();
  }
  const sync = () => {
    byId("schema-field").hidden = byId("format").value !== "json_schema";
    byId("tools-field").hidden = !byId("use-tools").checked;
  };
  byId("settings").addEventListener("change", sync);
  byId("settings").addEventListener("submit", (event) => event.preventDefault());
  sync();
}

/** Return the fields of a request; throws an Error in plain words where one cannot be read. */
export function fields() {
  const found = {
    model: byId("model").value || undefined,
    temperature: Number(byId("temperature").value),
    top_p: Number(byId("top_p").value),
    ...whole("max_tokens", "Most tokens"),
    ...whole("seed", "Seed"),
  };
  const format = byId("format").value;
  if (format === "json_object") found.response_format = { type: format };
  if (format === "json_schema") {
    const schema = json("schema", "The JSON schema");
    found.response_format = { type: format, json_schema: { name: "answer", schema } };
  }
  if (byId("use-tools").checked) found.tools = json("tools", "The tools");
  return found;
}

/** Return the system prompt as messages. */
export function systemMessages() {
  const content = byId("system").value.trim();
  return content ? [{ role: "system", content }] : [];
}

function whole(id, name) {
  const input = byId(id);
  if (!input.validity.valid) throw new Error(`${name} must be a whole number${input.min ? " from " + input.min : ""}.`);
  return input.value === "" ? {} : { [id]: Number(input.value) };
}

function json(id, name) {
  try {
    return JSON.parse(byId(id).value);
  } catch (error) {
    throw new Error(`${name}: not valid JSON (${error.message}).`);
  }
}
