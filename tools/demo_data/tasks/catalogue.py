"""Well-known tools for the tool-calling examples: names, parameters, and how people ask.

Data only.  Each row gives several names for the tool and for each parameter, so that the model has
to read the description in the prompt.  `{0}`, `{1}` … in a request stand for the parameters in
order; a request that leaves out trailing parameters leaves them out of the call.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Parameter:
    """A parameter: its possible names, its kind of value, its allowed values if they are few."""

    names: tuple[str, ...]
    kind: str
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class ToolKind:
    """A tool: possible names, description, parameters, requests, keys of its answer."""

    names: tuple[str, ...]
    description: str
    parameters: tuple[Parameter, ...]
    requests: tuple[str, ...]
    result: tuple[tuple[str, str], ...]


def _parameter(text: str) -> Parameter:
    names, kind, *choices = text.split(":")
    return Parameter(tuple(names.split("/")), kind, tuple(choices[0].split("/")) if choices else ())


def _tool(names: str, description: str, parameters: str, requests: str, result: str) -> ToolKind:
    pairs = tuple((key, kind) for key, kind in (item.split(":") for item in result.split(", ")))
    return ToolKind(
        tuple(names.split()),
        description,
        tuple(_parameter(p) for p in parameters.split(", ")) if parameters else (),
        tuple(requests.split(" | ")),
        pairs,
    )


CATALOGUE: tuple[ToolKind, ...] = (
    _tool(
        "get_weather get_current_weather weather weather_forecast lookup_weather",
        "Get the current weather in a city.",
        "city/location/place/town:city, unit/units:word:celsius/fahrenheit",
        "What is the weather in {0}? | How is the weather in {0}? | What's the weather like in {0}?"
        " | Weather in {0} please. | Tell me the weather in {0}. | Is it raining in {0}?"
        " | What is the weather in {0} in {1}? | Give me the weather in {0}, in {1}."
        " | Check the weather in {0}. | Check the weather for {0}. | weather {0} | How hot is it in {0}?"
        " | Do I need an umbrella in {0}? | I am going to {0}. How is the weather there?"
        " | What is the temperature in {0} in {1}? | Weather in {0} in {1}. | How cold is it in {0}, in {1}?"
        " | Get the weather of {0} in {1}. | Look up the weather in {0}, use {1}. | Find out the weather in {0}"
        " | What's the temperature in {0}? | Will it be sunny in {0}? | Show the weather for {0} in {1}.",
        "temperature:age, sky:colour",
    ),
    _tool(
        "get_time current_time get_current_time clock",
        "Get the current time in a city.",
        "city/location/place/timezone:city",
        "What time is it in {0}? | Tell me the time in {0}. | What is the current time in {0}?"
        " | How late is it in {0}? | Check the time in {0}. | time in {0} | What's the time in {0}?",
        "time:time",
    ),
    _tool(
        "add add_numbers sum calculator_add",
        "Add two numbers.",
        "a/x/first/left:number, b/y/second/right:number",
        "Use the tool to add {0} and {1}. | Add {0} and {1} with the tool. | Add {0} to {1} using the tool.",
        "result:number",
    ),
    _tool(
        "multiply multiply_numbers product",
        "Multiply two numbers.",
        "a/x/first/left:number, b/y/second/right:number",
        "Use the tool to multiply {0} by {1}. | Multiply {0} and {1} with the tool.",
        "result:number",
    ),
    _tool(
        "search search_web web_search find",
        "Search the web.",
        "query/q/text/keywords:phrase",
        "Search for {0}. | Find something about {0}. | Google {0}. | What can you find about {0}? | Search the web for {0}. | Look up {0} on the web. | Find pages about {0}.",
        "results:count",
    ),
    _tool(
        "send_email email mail send_mail",
        "Send an e-mail.",
        "to/recipient/address:email, subject/title:phrase, body/text:phrase",
        'Send an e-mail to {0} with the subject "{1}". | E-mail {0}, subject: {1}.'
        ' | Send an e-mail to {0} with the subject "{1}" and the text "{2}".'
        " | Write a mail to {0}. Subject: {1}. Text: {2}.",
        "status:word, id:id",
    ),
    _tool(
        "send_message message text send_text send_sms",
        "Send a message to a person.",
        "to/recipient/name/person:name, text/message/body/content:phrase",
        'Send {0} the message "{1}". | Tell {0}: {1}. | Send a message to {0}: {1}.'
        ' | Let {0} know: {1}. | Write to {0}: "{1}". | Message {0} that says "{1}". | Text {0} "{1}".',
        "status:word",
    ),
    _tool(
        "set_alarm alarm create_alarm",
        "Set an alarm.",
        "time/at/when:time, label/name:word",
        "Set an alarm for {0}. | Wake me up at {0}. | I need an alarm at {0}."
        " | Set an alarm for {0} called {1}.",
        "alarm:time",
    ),
    _tool(
        "set_timer timer start_timer",
        "Start a timer.",
        "minutes/duration/length:count",
        "Set a timer for {0} minutes. | Start a timer of {0} minutes. | Timer, {0} minutes please.",
        "ends:time",
    ),
    _tool(
        "play_music play_song play music",
        "Play a song.",
        "song/title/track:title, artist/by:full name",
        "Play {0}. | Play the song {0}. | Play {0} by {1}. | I want to hear {0} by {1}.",
        "playing:title",
    ),
    _tool(
        "book_table reserve_table make_reservation",
        "Reserve a table in a restaurant.",
        "restaurant/place/name:place name, people/guests/party_size:count, time/at:time",
        "Book a table at {0} for {1} people at {2}. | Reserve a table for {1} at {0} at {2}."
        " | I need a table at {0} for {1} people. | Book {0} for {1} people at {2}.",
        "confirmed:time, code:code",
    ),
    _tool(
        "book_flight find_flight search_flights flights",
        "Find a flight between two cities.",
        "from/origin/departure/start:city, to/destination/arrival/end:city, date/day:date",
        "Find a flight from {0} to {1}. | Book a flight from {0} to {1} on {2}."
        " | I want to fly from {0} to {1} on {2}. | Flights from {0} to {1}?",
        "flight:code, price:price",
    ),
    _tool(
        "convert_currency currency exchange convert_money",
        "Convert an amount of money.",
        "amount/value/sum:price, from/source/from_currency:currency, to/target/to_currency:currency",
        "Convert {0} {1} to {2}. | Exchange {0} {1} for {2}. | {0} {1} in {2}? | How much is {0} {1} in {2}? | Change {0} {1} into {2}."
        " | What are {0} {1} in {2}?",
        "amount:decimal",
    ),
    _tool(
        "translate translate_text translation",
        "Translate a text.",
        "text/phrase/input:phrase, language/to/target_language:language",
        'Translate "{0}" to {1}. | Translate {0} into {1}. | How do you say "{0}" in {1}?'
        ' | What is "{0}" in {1}?',
        "translation:phrase",
    ),
    _tool(
        "get_stock_price stock_price stock quote",
        "Get the price of a stock.",
        "symbol/ticker/stock:code",
        "How is the stock {0} doing? | Check the stock {0}. | What is the price of the stock {0}? | Stock price of {0}? | How much is a share of {0}?"
        " | Get the quote for {0}.",
        "price:decimal",
    ),
    _tool(
        "create_event add_event calendar schedule_meeting add_to_calendar",
        "Add an event to the calendar.",
        "title/name/summary/event:phrase, date/day/on:date, time/start/at:time",
        'Add "{0}" to my calendar on {1} at {2}. | Create an event called {0} on {1} at {2}.'
        ' | Put "{0}" in the calendar for {1}. | Schedule {0} for {1} at {2}.',
        "event:id",
    ),
    _tool(
        "add_to_cart add_item buy order_item add_to_list",
        "Add an item to the shopping list.",
        "item/product/article/name:food, quantity/amount/count/number:count",
        "Add {1} {0} to my list. | Put {0} on the list. | Buy {1} {0}. | I need {1} {0}. | Add {0}.",
        "items:count",
    ),
    _tool(
        "turn_on_light light_on lights switch_on_light",
        "Turn on the light in a room.",
        "room/where/location:room",
        "Turn on the light in the {0}. | Turn the {0} light on. | Lights on in the {0}! | Light on in the {0}. | Switch the {0} light on."
        " | It is dark in the {0}.",
        "status:word",
    ),
    _tool(
        "set_temperature thermostat set_heating heat",
        "Set the temperature of a room.",
        "room/where/location:room, degrees/temperature/value:age",
        "Set the {0} to {1} degrees. | Heat the {0} to {1} degrees. | Make it {1} degrees in the {0}.",
        "temperature:age",
    ),
    _tool(
        "get_order_status order_status track_order find_order",
        "Look up the state of an order.",
        "order_id/id/order/number:id",
        "Where is my order {0}? | What is the status of order {0}? | Track order {0}. | Check order {0}.",
        "status:word, day:day",
    ),
    _tool(
        "get_user find_user lookup_user user_info",
        "Look up a user.",
        "user_id/id/user/number:id",
        "Look up the user {0}. | Who is user {0}? | Get user {0}. | Show me the user with the id {0}.",
        "name:full name, city:city",
    ),
    _tool(
        "find_recipe recipe search_recipe get_recipe",
        "Find a recipe.",
        "dish/food/ingredient/name:food",
        "Find a recipe with {0}. | I want to cook {0}. | How do I make {0}? | Recipe for {0} please.",
        "recipe:title, minutes:count",
    ),
    _tool(
        "define lookup_word dictionary get_definition",
        "Look up a word in the dictionary.",
        "word/term/entry:word",
        'Define {0}. | What does "{0}" mean? | Look up the word {0}. | Give me the definition of {0}.',
        "definition:phrase",
    ),
    _tool(
        "read_file open_file cat load_file",
        "Read a file.",
        "path/file/filename/name:file",
        "Read the file {0}. | Open {0}. | Show me {0}. | What is in the file {0}?",
        "lines:count",
    ),
    _tool(
        "get_distance distance route find_route",
        "Get the distance between two cities.",
        "from/origin/start/a:city, to/destination/end/b:city",
        "How far is it from {0} to {1}? | What is the distance between {0} and {1}? | Distance from {0} to {1}?",
        "kilometres:id",
    ),
    _tool(
        "remind_me set_reminder reminder create_reminder",
        "Set a reminder.",
        "text/message/about/what:phrase, time/at/when:time",
        "Remind me at {1}: {0}. | Set a reminder for {1}: {0}. | At {1}, remind me of this: {0}.",
        "reminder:time",
    ),
    _tool(
        "call_contact call phone dial",
        "Call a person.",
        "name/contact/person/who:name",
        "Call {0}. | Phone {0} please. | Give {0} a call. | I want to talk to {0}.",
        "status:word",
    ),
    _tool(
        "take_note save_note note add_note write_note",
        "Save a note.",
        "text/note/content/body:phrase",
        "Take a note: {0}. | Note this down: {0} | Save the note {0}. | Write down: {0}.",
        "note:id",
    ),
    _tool(
        "get_news news headlines search_news",
        "Get the news about a topic.",
        "topic/subject/about/query:word",
        "What is new about {0}? | News about {0} please. | Give me the headlines on {0}.",
        "headline:phrase",
    ),
    _tool(
        "roll_dice dice random_number roll",
        "Roll a die.",
        "sides/max/high/faces:count",
        "Roll a die with {0} sides. | Give me a random number up to {0}. | Roll a {0}-sided die.",
        "rolled:age",
    ),
    _tool(
        "run_query query sql execute_sql",
        "Count the rows of a table.",
        "table/name/from:thing",
        "How many rows does the table {0} have? | Count the rows of {0}. | Query the {0} table.",
        "rows:id",
    ),
)
