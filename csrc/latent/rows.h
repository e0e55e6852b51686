// Rows of a paged cache that has one for each token, as floats. Only this file knows their forms.
//
// A row of 16 or 32 bits is its numbers. One of 8 bits is bytes: numbers, a float32 scale that
// fills 16 bytes, then further numbers of the model's type (docs/decisions/0185).
#pragma once

#include "common/narrow.h"
#include "common/rows.h"

namespace hotshoe::latent {

constexpr int64_t kScaleBytes = 16;

// Reads the numbers of a row, then the further ones.
using ReadRow = void (*)(const char* row, int64_t numbers, int64_t exact, float* to);

template <class S, class T>
void read_row(const char* row, int64_t numbers, int64_t exact, float* to) {
  if constexpr (kIsNarrow<S>) {
    const auto* from = reinterpret_cast<const S*>(row);
    float scale;
    std::memcpy(&scale, row + numbers, sizeof scale);
    bf16 wide[2 * VL];
    for (int64_t i = 0; i < numbers; i += 2 * VL) {
      const int n = int(std::min<int64_t>(2 * VL, numbers - i));
      widen_row(from + i, wide, n);
      for_vectors(n, [&](int64_t j, auto lanes) {
        store(to + i + j, load(wide + j, lanes) * vset(scale), lanes);
      });
    }
    convert_row(reinterpret_cast<const T*>(row + numbers + kScaleBytes), to + numbers, exact);
  } else {
    convert_row(reinterpret_cast<const S*>(row), to, numbers + exact);
  }
}

// Returns what reads rows of a cache of type `stored` beside elements of `dtype`.
inline ReadRow row_reader(int dtype, int stored) {
  return visit_float(dtype, [&](auto element) -> ReadRow {
    using T = decltype(element);
    if (stored < 3) {
      return visit_float(stored, [](auto kept) -> ReadRow { return read_row<decltype(kept), T>; });
    }
    ReadRow found = nullptr;
    visit_stored<T>(dtype, stored, [&](auto kept) { found = read_row<decltype(kept), T>; });
    return found;
  });
}

struct PagedRows {
  const void* cache;
  int64_t block_bytes, row_bytes, block_size;
  int64_t numbers, exact;
  ReadRow read;
  int64_t group = 1;  // tokens that a row stands for; it lies in the block of the last one

  int64_t width() const { return numbers + exact; }

  void load(const int32_t* blocks, int64_t position, float* to) const {
    const int64_t last = group == 1 ? position : (position + 1) * group - 1;
    const int64_t inner = group == 1 ? last % block_size : last % block_size / group;
    const char* rows = static_cast<const char*>(cache) + blocks[last / block_size] * block_bytes;
    read(rows + inner * row_bytes, numbers, exact, to);
  }
};

}  // namespace hotshoe::latent
