// Selection of a threshold without sorting: a radix histogram over the ordered bits of floats.
//
// Finds the largest value such that all values not below it weigh at least a target: with unit
// weights the k-th largest value, with probabilities the boundary of a nucleus.
#pragma once

#include <algorithm>
#include <bit>

#include "common/dtype.h"

namespace hotshoe {

// Unsigned integers in the order of the floats, equal where they are equal; NaN excluded.
inline uint32_t ordered_bits(float x) {
  const uint32_t u = float_bits(x + 0.0f);  // -0 becomes +0
  return u ^ (uint32_t(int32_t(u) >> 31) | 0x80000000u);
}

inline float from_ordered_bits(uint32_t key) {
  return bits_float(key ^ (uint32_t(int32_t(~key) >> 31) | 0x80000000u));
}

// Every key weighs one.
struct UnitWeights {
  double operator[](int64_t) const { return 1.0; }
  void move(int64_t, int64_t) {}
};

struct FloatWeights {
  float* values;
  double operator[](int64_t i) const { return values[i]; }
  void move(int64_t to, int64_t from) { values[to] = values[from]; }
};

// keys: `count` > 0 ordered keys; both they and the weights are overwritten.
// Returns the largest t among them with total weight of keys >= t at least `target`, or the
// smallest key when even all weigh less.
template <class Weights>
uint32_t weighted_threshold(uint32_t* keys, Weights weights, int64_t count, double target) {
  constexpr int kBits = 11;
  double bins[2][1 << kBits];  // two, because neighbors often share a bin and would wait for it
  for (;;) {
    uint32_t low = keys[0], high = keys[0];
    for (int64_t i = 1; i < count; ++i) {
      low = std::min(low, keys[i]);
      high = std::max(high, keys[i]);
    }
    if (low == high) return low;
    const int shift = std::max(0, int(std::bit_width(high - low)) - kBits);
    uint32_t bin = (high - low) >> shift;
    for (auto& half : bins) std::fill(half, half + bin + 1, 0.0);
    for (int64_t i = 0; i < count; ++i) bins[i & 1][(keys[i] - low) >> shift] += weights[i];
    for (; bin > 0; --bin) {
      const double weight = bins[0][bin] + bins[1][bin];
      if (weight >= target) break;
      target -= weight;
    }
    int64_t kept = 0;
    for (int64_t i = 0; i < count; ++i) {
      // No branch: which keys stay is hard to predict.
      const bool stays = (keys[i] - low) >> shift == bin;
      keys[kept] = keys[i];
      weights.move(kept, i);
      kept += stays;
    }
    count = kept;
  }
}

}  // namespace hotshoe
