// Online softmax over one chunk of scores: the row's weights and their sum.
//
// Works on float scratch rows; tiles.h fills them and consumes the weights.
// Source: Milakov and Gimelshein 2018, arXiv:1805.02867.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "common/exponential.h"

namespace hotshoe {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// tanh(x ln2 / 2), relative error below 2e-6 down to the smallest x; NaN stays NaN.
// From 2^x - 1, which keeps its digits where 2^x is near 1.
inline Vec vtanh2(Vec x) {
  x = vmin(vset(64.0f), vmax(vset(-64.0f), x));  // beyond, it is 1 in float
  const Vec n = vround(x), r = x - n, power = vscale2(vset(1.0f), n);
  const Vec t = vfma(power * r, vexp2_slope(r), power - vset(1.0f));
  return t / (t + vset(2.0f));
}

// Factor that turns sums relative to `from` into sums relative to `to`, both times `exponent`.
inline float rescale_factor(float from, float to, float exponent) {
  return from == kMinusInfinity ? 0.0f : vfirst(vexp2(vset((from - to) * exponent)));
}

// How scores become exponents: 2^(exponent * score), after a soft cap when cap > 0.
struct ScoreMap {
  ScoreMap(float scale, float softcap)
      : cap(softcap), inner(softcap > 0 ? scale / softcap : 0), unit(softcap > 0 ? 1 : scale) {}

  // softcap * tanh(scale * s / softcap) in place; n a multiple of VL.
  void soft_cap(float* s, int n) const {
    const Vec twice = vset(2.0f * inner * kLog2E);
    for (int i = 0; i < n; i += VL) vstore(s + i, vset(cap) * vtanh2(vload(s + i) * twice));
  }

  float exponent() const { return unit * kLog2E; }

  float cap, inner;
  float unit;  // a score times this is a logit
};

// One row's state over the chunks so far: the score that weights are relative to, and their sum.
struct RowState {
  float reference, sum;
};

// Weights are relative to a score that they may exceed while their sum is at most this, far below
// what float holds.
constexpr float kMaxWeights = 0x1p64f;

// Turns scores into weights relative to `reference` and returns their sum. What is stored is each
// weight times its value's scale, where there are any.
template <class A>
float weigh_row(const float* scores, int padded, float exponent, float reference,
                const float* scales, A* weights) {
  if (reference == kMinusInfinity) reference = 0.0f;
  const Vec scale = vset(exponent), shift = vset(-reference * exponent);
  Vec sum = vzero(), other = vzero();  // one chain would wait for itself
  for (int i = 0; i < padded; i += 2 * VL) {
    Vec a = vexp2_for<A>(vfma(vload(scores + i), scale, shift));
    Vec b = vexp2_for<A>(vfma(vload(scores + i + VL), scale, shift));
    sum += a;
    other += b;
    if (scales) {
      a *= vload(scales + i);
      b *= vload(scales + i + VL);
    }
    vstore_pair(weights + i, a, b);
  }
  return vsum(sum + other);
}

inline float largest_of(const float* scores, int padded) {
  Vec largest = vset(kMinusInfinity);
  for (int i = 0; i < padded; i += VL) largest = vmax(largest, vload(scores + i));
  return vmax_lane(largest);
}

// What changes a row's scores beside the map of all scores.
//
// Scores of keys, and weights of their values, are multiplied by scales; null for none. There is a
// number for each column, 0 behind the last key. With ALiBi (Press et al. 2022, arXiv:2108.12409)
// mapped scores fall by `slope`, in units of scores, for each column before the row's `position`.
// With `bias` a column's is added, `per_logit` times, by its distance from `position`: [2 * span + 1],
// or [span + 1] where no column is behind `position`.
// From `first_node` on a row sees, of up to 64 columns, those that a bit of `line` names.
struct RowTerms {
  const float *keys = nullptr, *values = nullptr;
  float slope = 0;
  int position = 0;
  const float* bias = nullptr;
  int span = 0;
  float per_logit = 0;
  int first_node = std::numeric_limits<int>::max();
  uint64_t line = 0;

  bool sees(int column) const { return column < first_node || line >> (column - first_node) & 1; }
};

inline void multiply_row(float* to, const float* by, int n) {
  for (int i = 0; i < n; i += VL) vstore(to + i, vload(to + i) * vload(by + i));
}

inline void add_slope(float* scores, int n, float slope, int position) {
  float columns[VL];
  for (int i = 0; i < VL; ++i) columns[i] = float(i - position);
  Vec distance = vload(columns);
  for (int i = 0; i < n; i += VL, distance += vset(float(VL))) {
    vstore(scores + i, vfma(vset(slope), distance, vload(scores + i)));
  }
}

inline void add_bias(float* scores, int begin, int end, const RowTerms& terms) {
  const int span = terms.span, position = terms.position;
  const int near = std::clamp(position - span, begin, end);
  const int far = std::clamp(position + span + 1, near, end);
  const float* table = terms.bias + span - position;
  const float before = terms.bias[0] * terms.per_logit;
  for (int i = begin; i < near; ++i) scores[i] += before;
  for (int i = near; i < far; ++i) scores[i] += table[i] * terms.per_logit;
  for (int i = far; i < end; ++i) scores[i] += terms.bias[2 * span] * terms.per_logit;
}

// Turns scores [begin, end) of a row, those that it sees, into weights, 0 elsewhere up to `padded`, a multiple of two
// vectors. Returns the factor on what was accumulated before.
//
// Weights must be finite, not at most 1: the reference of the chunks before, or at first the
// largest of a few scores, nearly always does, and saves a pass that looks for the maximum. Where
// scores fall with the distance, that is the largest of the last few.
template <class A>
float softmax_row(float* scores, int begin, int end, int padded, const ScoreMap& map,
                  const RowTerms& terms, RowState& state, A* weights) {
  while (begin < end && !terms.sees(begin)) ++begin;
  if (begin >= end) {  // no key, hence no reference either
    std::fill(weights, weights + padded, A{});
    return 1.0f;
  }
  if (terms.keys) multiply_row(scores, terms.keys, padded);
  if (map.cap > 0) map.soft_cap(scores, padded);
  if (terms.slope != 0) add_slope(scores, padded, terms.slope, terms.position);
  if (terms.bias) add_bias(scores, begin, end, terms);
  std::fill(scores, scores + begin, kMinusInfinity);
  std::fill(scores + end, scores + padded, kMinusInfinity);
  for (int i = std::max(begin, terms.first_node); i < end; ++i) {
    if (!terms.sees(i)) scores[i] = kMinusInfinity;
  }
  const float exponent = map.exponent(), before = state.reference;
  float reference = before;
  if (before == kMinusInfinity) reference = vmax_lane(vload(scores + begin / VL * VL));
  if (terms.slope > 0) {
    reference = std::max(reference, vmax_lane(vload(scores + (end - 1) / VL * VL)));
  }
  float sum = weigh_row(scores, padded, exponent, reference, terms.values, weights);
  if (!(std::abs(sum) <= kMaxWeights)) {  // what overflows may be NaN, or negative (vexp2)
    reference = largest_of(scores, padded);
    sum = weigh_row(scores, padded, exponent, reference, terms.values, weights);
  }
  if (reference == before) {
    state.sum += sum;
    return 1.0f;
  }
  const float rescale = rescale_factor(before, reference, exponent);
  state = {reference, state.sum * rescale + sum};
  return rescale;
}

}  // namespace hotshoe
