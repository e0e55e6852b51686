#!/usr/bin/env bash
# What `make demo` shows: the bundled model through the whole engine. BIN names the folder of `hotshoe`.
set -euo pipefail
hotshoe=${BIN:?}/hotshoe
here=$(dirname "${BASH_SOURCE[0]}")

show() {
    printf '\n\033[1m== %s\033[0m\n' "$1"
    shift
    printf '$ hotshoe'; printf ' %q' "$@"; printf '\n'
    "$hotshoe" "$@"
}

show "What is installed, and what it found" platforms
show "Text as it comes" generate demo --temperature 0 --max-tokens 60 -p "The command"
show "Several prompts, one batch" generate demo -q --seed 7 --temperature 0.8 --max-tokens 30 \
    -p "This function returns" "To install the package," "If the file does not exist,"
show "Arithmetic" chat demo -q --temperature 0 -p "What is 23 + 45?"
show "An answer from a given fact" chat demo -q --temperature 0 \
    -p "Anna's bicycle is green. What colour is Anna's bicycle?"
show "JSON" chat demo -q --temperature 0 \
    -p "Extract name and city as JSON: Peter lives in Vienna and works as a teacher."
show "A tool call" chat demo -q --temperature 0 --tools "$here/demo_tools.json" \
    -p "What is the weather in Paris?"
show "Which kernel serves which slot" explain demo
