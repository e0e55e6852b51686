"""The chat format: one Jinja template, and the same format rendered here for training.

`CHAT_TEMPLATE` goes into tokenizer_config.json.  `segments` renders a conversation to text pieces
that say which of them the model must learn to write; a test holds the two equal.  Rendering here
avoids a Jinja call for each of millions of conversations.
"""

import json
from dataclasses import dataclass, field
from typing import Any

CHAT_TEMPLATE = """\
{%- macro text(content) -%}
{%- if content is string -%}{{ content }}
{%- elif content -%}{%- for part in content -%}{{ part.text }}{%- endfor -%}
{%- endif -%}
{%- endmacro -%}
{%- set first_is_system = messages and messages[0].role == 'system' -%}
{%- if tools -%}
{{- '<|im_start|>system\\n' -}}
{%- if first_is_system -%}{{- text(messages[0].content) + '\\n\\n' -}}{%- endif -%}
{{- 'You can call these tools:\\n<tools>\\n' -}}
{%- for tool in tools -%}{{- (tool | tojson) + '\\n' -}}{%- endfor -%}
{{- '</tools>\\nTo call one, answer:\\n<tool_call>\\n' -}}
{{- '{"name": NAME, "arguments": ARGUMENTS}\\n</tool_call><|im_end|>\\n' -}}
{%- elif first_is_system -%}
{{- '<|im_start|>system\\n' + text(messages[0].content) + '<|im_end|>\\n' -}}
{%- endif -%}
{%- for message in messages -%}
{%- if message.role == 'tool' -%}
{%- if loop.first or loop.previtem.role != 'tool' -%}{{- '<|im_start|>user' -}}{%- endif -%}
{{- '\\n<tool_response>\\n' + text(message.content) + '\\n</tool_response>' -}}
{%- if loop.last or loop.nextitem.role != 'tool' -%}{{- '<|im_end|>\\n' -}}{%- endif -%}
{%- elif message.role == 'assistant' -%}
{%- set content = text(message.content) -%}
{%- if '</think>' in content -%}
{%- set content = content.split('</think>')[-1].lstrip('\\n') -%}
{%- endif -%}
{{- '<|im_start|>assistant\\n' + content -}}
{%- for call in message.tool_calls or [] -%}
{%- if content or not loop.first -%}{{- '\\n' -}}{%- endif -%}
{%- set function = call.function or call -%}
{{- '<tool_call>\\n{"name": "' + function.name + '", "arguments": ' -}}
{%- if function.arguments is string -%}{{- function.arguments -}}
{%- else -%}{{- function.arguments | tojson -}}{%- endif -%}
{{- '}\\n</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- elif not (loop.first and message.role == 'system') -%}
{{- '<|im_start|>' + message.role + '\\n' + text(message.content) + '<|im_end|>\\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- if enable_thinking -%}{{- '<think>\\n' -}}{%- endif -%}
{%- endif -%}
"""

TOOLS_OPENING = "You can call these tools:\n<tools>\n"
TOOLS_CLOSING = (
    "</tools>\nTo call one, answer:\n<tool_call>\n"
    '{"name": NAME, "arguments": ARGUMENTS}\n</tool_call><|im_end|>\n'
)

Message = dict[str, Any]
Segment = tuple[str, bool]


@dataclass
class Conversation:
    """Messages in the OpenAI form, the tools offered, and the thought before the last answer.

    Attributes:
        messages: `role`, `content` and, for an assistant, `tool_calls`.
        tools: Tool descriptions in the OpenAI form.
        thought: When not empty, the last answer is preceded by `<think>` and this text.
    """

    messages: list[Message] = field(default_factory=list)
    tools: list[dict[str, Any]] = field(default_factory=list)
    thought: str = ""


def user(content: str) -> Message:
    """Build a user message."""
    return {"role": "user", "content": content}


def assistant(content: str) -> Message:
    """Build an assistant message."""
    return {"role": "assistant", "content": content}


def calls(*tool_calls: tuple[str, dict[str, Any]]) -> Message:
    """Build an assistant message that calls tools, each given as (name, arguments)."""
    functions = [{"name": name, "arguments": arguments} for name, arguments in tool_calls]
    wrapped = [{"type": "function", "function": function} for function in functions]
    return {"role": "assistant", "content": "", "tool_calls": wrapped}


def tool_result(content: Any) -> Message:
    """Build a tool's answer; anything but a string is written as JSON."""
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    return {"role": "tool", "content": text}


def _answer(message: Message) -> str:
    blocks = [message["content"]] if message["content"] else []
    for call in message.get("tool_calls", ()):
        body = json.dumps(call["function"], ensure_ascii=False)
        blocks.append(f"<tool_call>\n{body}\n</tool_call>")
    return "\n".join(blocks)


def _head(conversation: Conversation) -> list[Segment]:
    first = conversation.messages[0]
    system = first["content"] if first["role"] == "system" else None
    if not conversation.tools:
        return [] if system is None else [(f"<|im_start|>system\n{system}<|im_end|>\n", False)]
    before = "" if system is None else system + "\n\n"
    listed = "".join(json.dumps(tool, ensure_ascii=False) + "\n" for tool in conversation.tools)
    return [(f"<|im_start|>system\n{before}{TOOLS_OPENING}{listed}{TOOLS_CLOSING}", False)]


def segments(conversation: Conversation) -> list[Segment]:
    """Render to (text, is learned) pieces; learned pieces are the assistant's words and end mark.

    A piece ends where generation would start, so that encoding the pieces one by one gives the
    tokens that a server sees.
    """
    pieces = _head(conversation)
    messages = conversation.messages
    for index, message in enumerate(messages):
        role = message["role"]
        if role == "tool":
            opened = index and messages[index - 1]["role"] == "tool"
            follows = index + 1 < len(messages) and messages[index + 1]["role"] == "tool"
            head, tail = "" if opened else "<|im_start|>user", "" if follows else "<|im_end|>\n"
            body = f"\n<tool_response>\n{message['content']}\n</tool_response>"
            pieces.append((head + body + tail, False))
        elif role == "assistant":
            thought = conversation.thought if index + 1 == len(messages) else ""
            opening = "<|im_start|>assistant\n" + ("<think>\n" if thought else "")
            closing = f"{thought}\n</think>\n\n" if thought else ""
            pieces += [
                (opening, False),
                (f"{closing}{_answer(message)}<|im_end|>", True),
                ("\n", False),
            ]
        elif index or role != "system":
            pieces.append((f"<|im_start|>{role}\n{message['content']}<|im_end|>\n", False))
    return pieces
