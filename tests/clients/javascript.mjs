// The official JavaScript clients against a server: node javascript.mjs URL. Exits with 1 at the first mistake.
// page.html runs the same in a browser, at another origin than the server's.
import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";

const url = globalThis.location ? new URL(location).searchParams.get("url") : process.argv[2];
const options = { apiKey: "none", maxRetries: 0, dangerouslyAllowBrowser: true };
const openai = new OpenAI({ baseURL: `${url}/v1`, ...options });
const anthropic = new Anthropic({ baseURL: url, ...options });
const model = "demo";
const messages = [{ role: "user", content: "What is 2 + 3?" }];

async function joined(stream, text) {
  let found = "";
  for await (const part of stream) found += text(part) ?? "";
  return found;
}

// Chat: whole, streamed, as JSON, with a tool.
const answer = await openai.chat.completions.create({ model, messages });
assert.match(answer.choices[0].message.content, /5/);
const chunks = await openai.chat.completions.create({ model, messages, stream: true });
assert.match(await joined(chunks, (part) => part.choices[0]?.delta.content), /5/);
const schema = {
  type: "object",
  properties: { name: { type: "string" }, age: { type: "integer" } },
  required: ["name", "age"],
  additionalProperties: false,
};
const person = await openai.chat.completions.create({
  model,
  messages: [{ role: "user", content: "Give me JSON with name and age: Ann is 5 years old." }],
  response_format: { type: "json_schema", json_schema: { name: "person", schema, strict: true } },
});
assert.equal(typeof JSON.parse(person.choices[0].message.content).age, "number");
const called = await openai.chat.completions.create({
  model,
  messages: [{ role: "user", content: "What is the weather in Paris?" }],
  tools: [
    {
      type: "function",
      function: {
        name: "get_weather",
        parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
      },
    },
  ],
  tool_choice: "required",
});
assert.equal(called.choices[0].message.tool_calls[0].function.name, "get_weather");

// Responses, completions, models, and a mistake.
const response = await openai.responses.create({ model, input: "What is 2 + 3?" });
assert.match(response.output_text, /5/);
const events = await openai.responses.create({ model, input: "What is 2 + 3?", stream: true });
const delta = (event) => (event.type === "response.output_text.delta" ? event.delta : "");
assert.match(await joined(events, delta), /5/);
const text = await openai.completions.create({ model, prompt: "Once upon a", max_tokens: 4 });
assert.ok(text.choices[0].text);
const names = [];
for await (const known of openai.models.list()) names.push(known.id);
assert.deepEqual(names, [model]);
await assert.rejects(
  openai.chat.completions.create({ model, messages, temperature: -1 }),
  (error) => error instanceof OpenAI.BadRequestError && error.param === "temperature",
);

// Anthropic's messages: whole and streamed.
const said = await anthropic.messages.create({ model, messages, max_tokens: 40 });
assert.match(said.content[0].text, /5/);
const stream = anthropic.messages.stream({ model, messages, max_tokens: 40 });
assert.match(await stream.finalText(), /5/);
console.log("right");
