// Memory as the kernels see it: large pages for what they stream, and how fast it can be read.

#include <nanobind/nanobind.h>

#include <cstdint>

#include "common/parallel.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif
#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace nb = nanobind;
using namespace nb::literals;

namespace hotshoe {
namespace {

bool advise_huge_pages(uintptr_t address, uint64_t nbytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  constexpr uintptr_t kPage = 4096;
  const uintptr_t begin = (address + kPage - 1) / kPage * kPage;
  const uintptr_t end = (address + nbytes) / kPage * kPage;
  return begin < end && madvise((void*)begin, end - begin, MADV_HUGEPAGE) == 0;
#else
  return false;
#endif
}

// Results of every operation are allocated and freed in turn. By default the C library hands large
// ones back to the system each time, and every step would fault their pages in anew.
bool keep_freed_memory(int64_t nbytes) {
#if defined(__GLIBC__)
  constexpr int kLargestThreshold = 32 << 20;  // above it glibc refuses
  return mallopt(M_MMAP_THRESHOLD, kLargestThreshold) == 1 &&
         mallopt(M_TRIM_THRESHOLD, int(nbytes)) == 1;
#else
  return false;
#endif
}

bool release_freed_memory() {
#if defined(__GLIBC__)
  return malloc_trim(0) == 1;
#else
  return false;
#endif
}

// Exclusive or of 64-bit words, in as many chains as the widest registers of this build hide.
uint64_t xor_words(const uint64_t* words, int64_t n) {
  constexpr int kLanes = 64;
  uint64_t lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) lanes[j] ^= words[i + j];
  }
  for (; i < n; ++i) lanes[0] ^= words[i];
  uint64_t all = 0;
  for (uint64_t lane : lanes) all ^= lane;
  return all;
}

uint64_t read_memory(uintptr_t address, int64_t nbytes) {
  constexpr int64_t kTaskWords = 4096;
  const auto* words = (const uint64_t*)address;
  const int64_t n = nbytes / 8;
  std::atomic<uint64_t> all{0};
  parallel_for((n + kTaskWords - 1) / kTaskWords, [&](int64_t begin, int64_t end) {
    const int64_t last = end * kTaskWords < n ? end * kTaskWords : n;
    all.fetch_xor(xor_words(words + begin * kTaskWords, last - begin * kTaskWords));
  });
  return all;
}

}  // namespace

void bind_memory(nb::module_& m) {
  m.def("advise_huge_pages", &advise_huge_pages, "address"_a, "nbytes"_a,
        "Ask for large pages in a range, best before it is first written. True if it was heard;\n"
        "page faults and address translation get cheaper, nothing else changes.");
  m.def("keep_freed_memory", &keep_freed_memory, "nbytes"_a,
        "Let the process keep up to this much freed heap memory (below 2 GiB) for its next\n"
        "allocations. True if the C library heard it.");
  m.def("release_freed_memory", &release_freed_memory, nb::call_guard<nb::gil_scoped_release>(),
        "Return freed heap memory to the system after all. True if there was any to return.");
  m.def("read_memory", &read_memory, "address"_a, "nbytes"_a,
        nb::call_guard<nb::gil_scoped_release>(),
        "Read a range once with all threads and return the exclusive or of its 64-bit words:\n"
        "the time that this takes is the bound of every kernel that streams weights.");
}

}  // namespace hotshoe
