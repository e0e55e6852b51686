// Symmetric int8 quantisation of rows, for weights and for activations.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "common/rows.h"
#include "common/words.h"

namespace hotshoe::linear {

// The factor between a row and its int8 values: the largest magnitude / 127. NaN when the row
// holds a NaN or an infinity, so that such a row's results are NaN rather than wrong.
template <class T>
float row_scale(const T* row, int64_t k) {
  Vec largest = vzero(), poison = vzero();
  auto see = [&](Vec x) {
    largest = vmax(vabs(x), largest);
    poison = vfma(x, vzero(), poison);
  };
  int64_t i = 0;
  for (; i + VL <= k; i += VL) see(vload(row + i));
  see(vload_n(row + i, int(k - i)));
  return (vmax_lane(largest) + vsum(poison)) / 127.0f;
}

// Writes the values divided by `scale`, rounded to nearest even, plus `offset`, modulo 256.
template <class T>
void quantize_row(const T* row, int64_t k, float scale, int8_t* to, int offset = 0) {
  typedef int8_t Bytes __attribute__((vector_size(VL)));
  const Vec inverse = vset(scale > 0.0f ? 1.0f / scale : 0.0f);
  const Vec low = vset(-127.0f), high = vset(127.0f);
  for_vectors(k, [&](int64_t i, auto lanes) {
    // In this order a NaN becomes `low`.
    const Vec rounded = vround(vmin(high, vmax(load(row + i, lanes) * inverse, low)));
    const auto words = __builtin_convertvector((FloatLanes)rounded.v, IntLanes) + offset;
    const Bytes bytes = __builtin_convertvector(words, Bytes);
    std::memcpy(to + i, &bytes, size_t(count(lanes)));
  });
}

}  // namespace hotshoe::linear
