// The choice of experts for one token, from its logits.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace hotshoe::moe {

enum class Scoring : int { softmax = 0, sigmoid = 1, sqrtsoftplus = 2, sparsemixer = 3 };

struct Router {
  int64_t experts, top_k;
  Scoring scoring;
  bool renormalize;
  float scale;
  int64_t groups, groups_kept;
  int group_counts;  // how many of a group's scores add up to its own
  const float* correction;  // [experts], or null
  float jitter;             // of sparsemixer
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

// Returns the score of an expert, of a softmax before it is divided.
inline float score(Scoring scoring, float logit, float most) {
  switch (scoring) {
    case Scoring::softmax: return std::exp(logit - most);
    case Scoring::sigmoid: return 1.0f / (1.0f + std::exp(-logit));
    // Far above 0 the logarithm is the logit itself.
    default: return std::sqrt(logit > 20.0f ? logit : std::log1p(std::exp(logit)));
  }
}

// Takes the largest of the logits that are left, in `left`, again and again; each counts as its share
// among those that lie near to it. Source: Liu et al. 2024, arXiv:2409.12136.
inline void mix_sparsely(const Router& router, const float* logits, int32_t* ids, float* weights,
                         float* left) {
  const int64_t n = router.experts;
  std::copy_n(logits, n, left);
  for (int64_t j = 0; j < router.top_k; ++j) {
    const int64_t best = std::min(largest(left, n), n - 1);
    const float most = left[best];
    float near = 0.0f;
    for (int64_t i = 0; i < n; ++i) {
      const float distance = (most - logits[i]) / std::max(std::abs(logits[i]), most);
      if (!(distance > 2 * router.jitter)) near += std::exp(left[i] - most);
    }
    ids[j] = int32_t(best);
    weights[j] = 1.0f / near;
    left[best] = kNone;
  }
}

// Writes top_k experts and their scores. `room` holds 3 * experts + groups floats.
inline void take_best(const Router& router, const float* logits, int32_t* ids, float* weights,
                      float* room) {
  const int64_t n = router.experts;
  float *const scores = room, *const wanted = room + n;
  const float most = *std::max_element(logits, logits + n);
  float whole = 0.0f;
  for (int64_t i = 0; i < n; ++i) whole += scores[i] = score(router.scoring, logits[i], most);
  const float share = router.scoring == Scoring::softmax ? 1.0f / whole : 1.0f;
  for (int64_t i = 0; i < n; ++i) {
    scores[i] *= share;
    wanted[i] = scores[i] + (router.correction ? router.correction[i] : 0.0f);
  }
  if (router.groups > 1) keep_best_groups(router, wanted, room + 2 * n);
  for (int64_t j = 0; j < router.top_k; ++j) {
    const int64_t best = std::min(largest(wanted, n), n - 1);
    ids[j] = int32_t(best);
    wanted[best] = kNone;
    weights[j] = scores[best];
  }
}

// Writes top_k experts and what each counts. A token whose logits hold NaN gets NaN for weights.
// `room` holds 3 * experts + groups floats.
inline void choose(const Router& router, const float* logits, int32_t* ids, float* weights,
                   float* room) {
  const int64_t n = router.experts, k = router.top_k;
  if (std::any_of(logits, logits + n, [](float logit) { return logit != logit; })) {
    std::fill_n(weights, k, std::numeric_limits<float>::quiet_NaN());
  } else if (router.scoring == Scoring::sparsemixer) {
    mix_sparsely(router, logits, ids, weights, room);
  } else {
    take_best(router, logits, ids, weights, room);
  }
  float sum = 0.0f;
  for (int64_t j = 0; j < k; ++j) sum += weights[j];
  if (sum != sum) {
    for (int64_t j = 0; j < k; ++j) ids[j] = int32_t(j), weights[j] = sum;
  }
  const float factor = router.scale / (router.renormalize ? sum + kTiny : 1.0f);
  for (int64_t j = 0; j < k; ++j) weights[j] *= factor;
}

}  // namespace hotshoe::moe
