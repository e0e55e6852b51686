// Symmetric int8 quantisation of rows, for weights and for activations.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "common/rows.h"
#include "common/words.h"

namespace hotshoe::linear {

// The largest magnitude of a row; NaN when it holds a NaN or an infinity.
template <class T>
float largest_magnitude(const T* row, int64_t k) {
  Vec largest = vzero(), poison = vzero();
  for_vectors(k, [&](int64_t i, auto lanes) {
    const Vec x = load(row + i, lanes);
    largest = vmax(vabs(x), largest);
    poison = vfma(x, vzero(), poison);
  });
  return vmax_lane(largest) + vsum(poison);
}

// Without their sign, bfloat16 numbers are ordered as their bits are.
inline float largest_magnitude(const bf16* row, int64_t k) {
  constexpr int kLanes = 2 * VL, kInfinity = 0x7f80;
  typedef uint16_t Bits __attribute__((vector_size(kLanes * 2)));
  Bits largest{};
  int64_t i = 0;
  const auto see = [&](int64_t n) {
    Bits x{};
    std::memcpy(&x, row + i, size_t(n) * sizeof(bf16));
    x &= uint16_t(0x7fff);
    largest = x > largest ? x : largest;
  };
  for (; i + kLanes <= k; i += kLanes) see(kLanes);
  if (i < k) see(k - i);
  uint16_t most = 0;
  for (int lane = 0; lane < kLanes; ++lane) most = std::max<uint16_t>(most, largest[lane]);
  if (most >= kInfinity) return std::numeric_limits<float>::quiet_NaN();
  const uint32_t bits = uint32_t(most) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// The factor between a row and its int8 values: the largest magnitude / 127. NaN when the row
// holds a NaN or an infinity, so that such a row's results are NaN rather than wrong. Zero where it
// would be too small for its inverse, below 2^-126.
template <class T>
float row_scale(const T* row, int64_t k) {
  const float scale = largest_magnitude(row, k) / 127.0f;
  return scale < std::numeric_limits<float>::min() ? 0.0f : scale;
}

// Writes the values divided by `scale`, rounded to nearest even, plus `offset`, modulo 256. They
// are at most 127 when `scale` is the row's; where it is NaN, they are any.
template <class T>
void quantize_row(const T* row, int64_t k, float scale, int8_t* to, int offset = 0) {
  typedef int8_t Bytes __attribute__((vector_size(VL)));
  const Vec inverse = vset(scale > 0.0f ? 1.0f / scale : 0.0f);
  for_vectors(k, [&](int64_t i, auto lanes) {
    const IntLanes words = nearest_words(load(row + i, lanes) * inverse) + offset;
    const Bytes bytes = __builtin_convertvector(words, Bytes);
    std::memcpy(to + i, &bytes, size_t(count(lanes)));
  });
}

}  // namespace hotshoe::linear
