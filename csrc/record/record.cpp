// Python functions that make and repeat lists of kernel calls.

#include "record/record.h"

#include <nanobind/nanobind.h>

#include <stdexcept>
#include <utility>

namespace nb = nanobind;
using namespace nb::literals;

namespace hotshoe {
namespace {

constexpr const char* kName = "hotshoe.recording";

void begin() {
  if (current_recording()) throw std::runtime_error("this thread is recording already");
  current_recording() = new Recording;
}

nb::capsule end() {
  Recording* made = std::exchange(current_recording(), nullptr);
  if (!made) throw std::runtime_error("this thread is not recording");
  made->shrink_to_fit();
  return nb::capsule(made, kName,
                     [](void* calls) noexcept { delete static_cast<Recording*>(calls); });
}

const Recording& list(const nb::capsule& calls) {
  return *static_cast<const Recording*>(calls.data(kName));
}

void replay(const nb::capsule& calls) {
  const Recording& found = list(calls);
  nb::gil_scoped_release unlocked;
  for (const auto& call : found) call();
}

}  // namespace

Recording*& current_recording() {
  thread_local Recording* current = nullptr;
  return current;
}

bool& rehearsing() {
  thread_local bool now = false;
  return now;
}

void bind_record(nb::module_& m) {
  m.def("record_begin", &begin,
        "Keep this thread's calls of kernels from now on, which run as always.\n\n"
        "Raises:\n    RuntimeError: It does so already.");
  m.def("record_end", &end,
        "End it, and return the calls as an opaque object. The addresses in them must stay.\n\n"
        "Raises:\n    RuntimeError: There was no beginning.");
  m.def("record_size", [](const nb::capsule& calls) { return list(calls).size(); }, "calls"_a,
        "Return how many calls there are.");
  m.def("rehearse", [](bool now) { rehearsing() = now; }, "now"_a,
        "Say whether this thread's calls of kernels leave the states of sequences as they are. All\n"
        "else they compute as always.");
  m.def("record_replay", &replay, "calls"_a,
        "Make the calls again, in order, over what their addresses hold now. Raises what a call\n"
        "raises, and makes none behind it.");
}

}  // namespace hotshoe
