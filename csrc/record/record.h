// Lists of kernel calls: while one is being made on a thread, every call of a function that was
// bound through `recorded` runs as always, and is kept with its arguments to be repeated.
//
// Arguments are addresses, sizes and numbers, so a list knows nothing of what they belong to;
// whoever makes it keeps the memory. record.cpp has its Python functions.
//
// A call that moves states on gives something else when it is repeated. So whoever compares calls
// rehearses them: kernels compute everything, and leave states as they were.
#pragma once

#include <functional>
#include <vector>

namespace hotshoe {

using Recording = std::vector<std::function<void()>>;

// The list that the calling thread's kernel calls join; null while none is being made.
Recording*& current_recording();

// Whether the calling thread's kernel calls leave the states of sequences as they are.
bool& rehearsing();

// Wraps a kernel function for `m.def`.
template <class... A>
auto recorded(void (*kernel)(A...)) {
  return [kernel](A... arguments) {
    kernel(arguments...);
    if (Recording* calls = current_recording()) calls->push_back([=] { kernel(arguments...); });
  };
}

}  // namespace hotshoe
