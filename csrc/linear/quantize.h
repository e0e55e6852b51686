// Symmetric int8 quantisation of rows, for weights and for activations.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "common/simd.h"

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

// Calls put(i, v) for i in [0, k): the values divided by `scale`, rounded to nearest even.
template <class T, class Put>
void quantize_row(const T* row, int64_t k, float scale, Put put) {
  const Vec inverse = vset(scale > 0.0f ? 1.0f / scale : 0.0f);
  const Vec low = vset(-127.0f), high = vset(127.0f);
  float rounded[VL];
  for (int64_t i = 0; i < k; i += VL) {
    const int n = int(std::min<int64_t>(VL, k - i));
    const Vec x = (n == VL ? vload(row + i) : vload_n(row + i, n)) * inverse;
    vstore(rounded, vround(vmin(high, vmax(x, low))));
    for (int j = 0; j < n; ++j) put(i + j, int8_t(rounded[j]));
  }
}

}  // namespace hotshoe::linear
