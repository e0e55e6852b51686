// The choice of experts for one token, from its logits.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace hotshoe::moe {

enum class Scoring : int { softmax = 0, sigmoid = 1 };

struct Router {
  int64_t experts, top_k;
  Scoring scoring;
  bool renormalize;
  float scale;
  int64_t groups, groups_kept;
  int group_counts;  // how many of a group's scores add up to its own
  const float* correction;  // [experts], or null
};

constexpr float kNone = -std::numeric_limits<float>::infinity();
// Added to sums that weights are divided by: all scores may be 0.
constexpr float kTiny = 1e-20f;

// Returns the index of the largest of n numbers, the first on ties; n of none above kNone.
inline int64_t largest(const float* values, int64_t n) {
  int64_t best = n;
  float most = kNone;
  for (int64_t i = 0; i < n; ++i) {
    if (values[i] > most) most = values[best = i];
  }
  return best;
}

// Leaves kNone in the place of scores whose group is not among the best.
inline void keep_best_groups(const Router& router, float* wanted, float* room) {
  const int64_t size = router.experts / router.groups;
  float *const totals = room, *const copy = room + router.groups;
  for (int64_t g = 0; g < router.groups; ++g) {
    std::copy_n(wanted + g * size, size, copy);
    totals[g] = 0.0f;
    for (int i = 0; i < router.group_counts; ++i) {
      const int64_t best = largest(copy, size);
      if (best == size) continue;
      totals[g] += copy[best];
      copy[best] = kNone;
    }
  }
  for (int64_t kept = 0; kept < router.groups_kept; ++kept) {
    const int64_t best = largest(totals, router.groups);
    if (best < router.groups) totals[best] = kNone;
  }
  for (int64_t g = 0; g < router.groups; ++g) {
    if (totals[g] != kNone) std::fill_n(wanted + g * size, size, kNone);
  }
}

// Writes top_k experts and what each counts. A token whose logits hold NaN gets NaN for weights.
// `room` holds 3 * experts + groups floats.
inline void choose(const Router& router, const float* logits, int32_t* ids, float* weights,
                   float* room) {
  const int64_t n = router.experts, k = router.top_k;
  float *const scores = room, *const wanted = room + n;
  const float most = *std::max_element(logits, logits + n);
  float whole = 0.0f;
  for (int64_t i = 0; i < n; ++i) {
    scores[i] = router.scoring == Scoring::softmax ? std::exp(logits[i] - most)
                                                   : 1.0f / (1.0f + std::exp(-logits[i]));
    whole += scores[i];
  }
  if (whole != whole) {
    for (int64_t j = 0; j < k; ++j) ids[j] = int32_t(j), weights[j] = whole;
    return;
  }
  const float share = router.scoring == Scoring::softmax ? 1.0f / whole : 1.0f;
  for (int64_t i = 0; i < n; ++i) {
    scores[i] *= share;
    wanted[i] = scores[i] + (router.correction ? router.correction[i] : 0.0f);
  }
  if (router.groups > 1) keep_best_groups(router, wanted, room + 2 * n);
  float sum = 0.0f;
  for (int64_t j = 0; j < k; ++j) {
    const int64_t best = std::min(largest(wanted, n), n - 1);
    ids[j] = int32_t(best);
    wanted[best] = kNone;
    sum += weights[j] = scores[best];
  }
  const float factor = router.scale / (router.renormalize ? sum + kTiny : 1.0f);
  for (int64_t j = 0; j < k; ++j) weights[j] *= factor;
}

}  // namespace hotshoe::moe
