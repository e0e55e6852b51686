"""Chat templates of models whose publishers describe a conversation by a program alone.

A request turns thinking on by `thinking` or `enable_thinking`, or by a `reasoning_effort` other
than none. A message may bring tools of its own; those of the request go behind the system message.

Source: the descriptions of DeepSeek-V3.2's and V4's encodings, and the examples beside them.
"""

#: Whether to think, and where the last message is that the model answers.
_BEGIN = r"""
{%- if thinking is not defined -%}
  {%- set effort = reasoning_effort | default("none", true) -%}
  {%- set thinking = enable_thinking | default(effort != "none") -%}
{%- endif -%}
{%- set at = namespace(last=-1, tools=tools) -%}
{%- for message in messages -%}
  {%- if message.role in ASKING -%}
    {%- set at.last = loop.index0 -%}
  {%- endif -%}
  {%- set at.tools = at.tools or message.tools -%}
{%- endfor -%}
{%- macro schemas(offered) -%}
  {%- for tool in offered -%}
    {{- tool.function | tojson ~ ("" if loop.last else "\n") -}}
  {%- endfor -%}
{%- endmacro -%}
{%- macro calls_of(message) -%}
  {{- "\n\n<｜DSML｜BLOCK>\n" -}}
  {%- for call in message.tool_calls -%}
    {%- set given = call.function.arguments -%}
    {%- set given = given if given is mapping else {"arguments": given} -%}
    {{- '<｜DSML｜invoke name="' ~ call.function.name ~ '">\n' -}}
    {%- for key, value in given.items() -%}
      {%- set kind, text = ("true", value) if value is string else ("false", value | tojson) -%}
      {{- '<｜DSML｜parameter name="' ~ key ~ '" string="' ~ kind ~ '">' ~ text -}}
      {{- "</｜DSML｜parameter>\n" -}}
    {%- endfor -%}
    {{- ("" if given else "\n") ~ "</｜DSML｜invoke>\n" -}}
  {%- endfor -%}
  {{- "</｜DSML｜BLOCK>" -}}
{%- endmacro -%}
"""
_V32_TOOLS = r"""
{%- macro offer(offered) -%}
{{- "\n\n" -}}
## Tools
You have access to a set of tools you can use to answer the user's question.
You can invoke functions by writing a "<｜DSML｜function_calls>" block like the following as part of your reply to the user:
<｜DSML｜function_calls>
<｜DSML｜invoke name="$FUNCTION_NAME">
<｜DSML｜parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜parameter>
...
</｜DSML｜invoke>
<｜DSML｜invoke name="$FUNCTION_NAME2">
...
</｜DSML｜invoke>
</｜DSML｜function_calls>
String and scalar parameters should be specified as is without any escaping or quotes, while lists and objects should use JSON format. The "string" attribute should be set to "true" for string type parameters and "false" for other types (numbers, booleans, arrays, objects).
If the thinking_mode is enabled, then after function results you should strongly consider outputting a thinking block. Here is an example:
<｜DSML｜function_calls>
...
</｜DSML｜function_calls>
<function_results>
...
</function_results>
<think>...thinking about results</think>
Here are the functions available in JSONSchema format:
<functions>
{{ schemas(offered) ~ "\n</functions>\n" -}}
{%- endmacro -%}
"""  # noqa: E501
_V32 = r"""
{{- "<｜begin▁of▁sentence｜>" -}}
{%- if tools and (not messages or messages[0].role != "system") -%}
  {{- offer(tools) -}}
{%- endif -%}
{%- for message in messages -%}
  {%- set role, index = message.role, loop.index0 -%}
  {%- set opening = "<think>" if thinking and index >= at.last else "</think>" -%}
  {%- set offered = message.tools or (tools if loop.first and role == "system") -%}
  {%- if role == "system" -%}
    {{- message.content ~ (offer(offered) if offered else "") -}}
  {%- elif role in ("user", "developer") -%}
    {{- "<｜User｜>" ~ (offer(offered) if offered else "") -}}
    {{- "\n\n# The user's message is: " if role == "developer" -}}
    {{- message.content -}}
    {%- if not loop.last or add_generation_prompt -%}
      {{- "<｜Assistant｜>" ~ opening -}}
    {%- endif -%}
  {%- elif role == "tool" -%}
    {{- "\n\n<function_results>" if loop.previtem is not defined or loop.previtem.role != "tool" -}}
    {{- "\n<result>" ~ message.content ~ "</result>" -}}
    {%- if loop.last or loop.nextitem.role != "tool" -%}
      {{- "\n</function_results>" -}}
      {%- if not loop.last or add_generation_prompt -%}
        {{- "\n\n" ~ opening -}}
      {%- endif -%}
    {%- endif -%}
  {%- elif role == "assistant" -%}
    {%- if thinking and index > at.last -%}
      {{- (message.reasoning_content or "") ~ "</think>" -}}
    {%- endif -%}
    {{- message.content -}}
    {{- calls_of(message) if message.tool_calls -}}
    {{- "<｜end▁of▁sentence｜>" -}}
  {%- else -%}
    {{- raise_exception("there is no role " ~ role) -}}
  {%- endif -%}
{%- endfor -%}
"""
_V4_TOOLS = r"""
{%- macro offer(offered) -%}
{{- "\n\n" -}}
## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by writing a "<｜DSML｜tool_calls>" block like the following:

<｜DSML｜tool_calls>
<｜DSML｜invoke name="$TOOL_NAME">
<｜DSML｜parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜parameter>
...
</｜DSML｜invoke>
<｜DSML｜invoke name="$TOOL_NAME2">
...
</｜DSML｜invoke>
</｜DSML｜tool_calls>

String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, arrays, objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside <think>...</think> BEFORE any tool calls or final response.

Otherwise, output directly after </think> with tool calls or final response.

### Available Tool Schemas

{{ schemas(offered) ~ "\n\n" -}}
You MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.
{{- "\n" -}}
{%- endmacro -%}
"""  # noqa: E501
#: Results of tools are what a user says, in the order of the calls; texts that follow join them.
_V4 = r"""
{{- "<｜begin▁of▁sentence｜>" -}}
{%- if thinking and reasoning_effort == "max" -%}
{{- "Reasoning Effort: Absolute maximum with no shortcuts permitted.\n" -}}
{{- "You MUST be very thorough in your thinking and comprehensively decompose the problem to resolve the root cause, rigorously stress-testing your logic against all potential paths, edge cases, and adversarial scenarios.\n" -}}
{{- "Explicitly write out your entire deliberation process, documenting every intermediate step, considered alternative, and rejected hypothesis to ensure absolutely no assumption is left unchecked.\n\n" -}}
{%- endif -%}
{%- if tools and (not messages or messages[0].role != "system") -%}
  {{- offer(tools) -}}
{%- endif -%}
{%- set turn = namespace(open=false, calls=[], results=[], next=0) -%}
{%- for message in messages -%}
  {%- set role, index = message.role, loop.index0 -%}
  {%- set offered = message.tools or (tools if loop.first and role == "system") -%}
  {%- if role in ("user", "tool") -%}
    {%- if turn.open -%}
      {{- "\n\n" -}}
    {%- else -%}
      {{- "<｜User｜>" -}}
      {%- set turn.open, turn.results, turn.next = true, [], 0 -%}
    {%- endif -%}
    {%- if role == "user" -%}
      {{- message.content -}}
    {%- else -%}
      {%- if not turn.results -%}
        {%- set found = namespace(results=[]) -%}
        {%- for other in messages[index:] -%}
          {%- if other.role not in ("user", "tool") -%}{%- break -%}{%- endif -%}
          {%- if other.role == "tool" -%}
            {%- set place = namespace(at=0) -%}
            {%- for call in turn.calls -%}
              {%- set place.at = loop.index0 if call.id == other.tool_call_id else place.at -%}
            {%- endfor -%}
            {%- set found.results = found.results + [[place.at, loop.index0, other.content]] -%}
          {%- endif -%}
        {%- endfor -%}
        {%- set turn.results = found.results | sort -%}
      {%- endif -%}
      {{- "<tool_result>" ~ turn.results[turn.next][2] ~ "</tool_result>" -}}
      {%- set turn.next = turn.next + 1 -%}
    {%- endif -%}
  {%- else -%}
    {%- set turn.open = false -%}
    {%- if role == "system" -%}
      {{- message.content ~ (offer(offered) if offered else "") -}}
    {%- elif role == "developer" -%}
      {{- "<｜User｜>" ~ message.content ~ (offer(offered) if offered else "") -}}
    {%- elif role == "latest_reminder" -%}
      {{- "<｜latest_reminder｜>" ~ message.content -}}
    {%- elif role == "assistant" -%}
      {%- if thinking and (at.tools or index > at.last) -%}
        {{- (message.reasoning_content or "") ~ "</think>" -}}
      {%- endif -%}
      {{- message.content -}}
      {%- if message.tool_calls -%}
        {{- calls_of(message) -}}
        {%- set turn.calls = message.tool_calls -%}
      {%- endif -%}
      {{- "<｜end▁of▁sentence｜>" -}}
    {%- else -%}
      {{- raise_exception("there is no role " ~ role) -}}
    {%- endif -%}
  {%- endif -%}
  {%- set answered = not loop.last and loop.nextitem.role in ("assistant", "latest_reminder") -%}
  {%- if role in ("user", "tool", "developer") and (answered or (loop.last and add_generation_prompt)) -%}
    {{- "<｜Assistant｜>" -}}
    {{- "<think>" if thinking and (at.tools or index >= at.last) else "</think>" -}}
  {%- endif -%}
{%- endfor -%}
"""  # noqa: E501
DEEPSEEK_V32 = (
    _BEGIN.replace("ASKING", '("user", "developer")').replace("BLOCK", "function_calls")
    + _V32_TOOLS
    + _V32
)
DEEPSEEK_V4 = (
    _BEGIN.replace("ASKING", '("user", "developer", "tool")').replace("BLOCK", "tool_calls")
    + _V4_TOOLS
    + _V4
)
