// Mixtures of experts: tokens choose, are sorted by expert, and meet each chosen expert's weights
// once; what experts give is weighted and added up per token, always in the same order.

#include <nanobind/nanobind.h>

#include <memory>
#include <vector>

#include "activation/gates.h"
#include "common/parallel.h"
#include "common/rows.h"
#include "linear/linear.h"
#include "moe/router.h"
#include "record/record.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace hotshoe::moe {
namespace {

constexpr int kNoGate = -1, kSquaredRelu = 3;
constexpr int64_t kMinElementsPerThread = 4096;  // below, waking a thread costs more
constexpr int64_t kMinTokensPerThread = 16;

// One matrix of all experts: packed weights and biases, each expert's behind those of the last.
struct Matrices {
  linear::Layout layout;
  const char* packed;
  int64_t stride;     // bytes
  const float* bias;  // [experts, n], or null

  linear::Call call(int64_t expert) const {
    linear::Call c{layout};
    c.weights = packed + expert * stride;
    c.bias = bias ? bias + expert * layout.n : nullptr;
    return c;
  }
};

// What lies between an expert's matrices where their product does not do it itself.
struct Inner {
  int kind;    // activation code
  bool gated;  // gates and ups come side by side
  float limit, alpha, shift, gate_limit;
};

// Where experts are, if some are elsewhere; `held` is the place of those.
struct Placement {
  int64_t held, turns;
  const int32_t* table;  // [turns, experts], or null: each expert is at the place of its number
  int32_t* counts;       // [experts], or null
};

struct Step {
  Matrices gate_up, down;
  Router router;
  Placement placement;
  Inner inner;
  int64_t tokens;
  DType dtype;
  const char* x;
  int64_t x_stride;
  const float* logits;
  char* y;
};

// Tokens of each place, in their order; those of experts that are elsewhere come last.
struct Sorted {
  std::vector<int32_t> ids;       // [tokens, top_k], places
  std::vector<float> weights;     // likewise
  std::vector<int64_t> begin;     // [held + 2]
  std::vector<int32_t> rows;      // tokens, sorted by place
  std::vector<int32_t> place_of;  // of each of `ids`, its place in `rows`
};

// Replaces experts by their places, and counts them.
void find_places(const Step& step, std::vector<int32_t>& ids) {
  const Placement& at = step.placement;
  const int64_t k = step.router.top_k, n = step.router.experts, pairs = step.tokens * k;
  if (at.counts) {
    for (int64_t i = 0; i < pairs; ++i) ++at.counts[ids[i]];
  }
  if (at.table == nullptr) return;
  for (int64_t i = 0; i < pairs; ++i) ids[i] = at.table[i / k % at.turns * n + ids[i]];
}

Sorted sort_tokens(const Step& step) {
  const int64_t k = step.router.top_k, n = step.router.experts, pairs = step.tokens * k;
  const int64_t ends = step.placement.held + 2;
  Sorted s{std::vector<int32_t>(pairs), std::vector<float>(pairs), std::vector<int64_t>(ends),
           std::vector<int32_t>(pairs), std::vector<int32_t>(pairs)};
  parallel_for(
      step.tokens,
      [&](int64_t begin, int64_t end) {
        std::vector<float> room(3 * n + step.router.groups);
        for (int64_t t = begin; t < end; ++t) {
          choose(step.router, step.logits + t * n, &s.ids[t * k], &s.weights[t * k], room.data());
        }
      },
      kMinTokensPerThread);
  find_places(step, s.ids);
  for (int64_t i = 0; i < pairs; ++i) ++s.begin[s.ids[i] + 1];
  for (int64_t e = 1; e < ends; ++e) s.begin[e] += s.begin[e - 1];
  std::vector<int64_t> next(s.begin.begin(), s.begin.end() - 1);
  for (int64_t i = 0; i < pairs; ++i) {
    const int64_t place = next[s.ids[i]]++;
    s.rows[place] = int32_t(i / k);
    s.place_of[i] = int32_t(place);
  }
  return s;
}

// silu with a slope, or another activation; `Act` is one of gates.h.
template <class T, class Act>
Vec active(Act act, Vec x, float alpha) {
  if constexpr (std::is_same_v<Act, Silu>) {
    return over_one_plus_exp<T>(x, vzero() - x * vset(alpha));
  } else {
    return act.template apply<T>(x);
  }
}

struct SquaredRelu {
  template <class T>
  Vec apply(Vec x) const {
    const Vec positive = vmax(vzero(), x);  // NaN passes: the second operand is given back
    return positive * positive;
  }
};

template <class F>
void visit_inner(int kind, F f) {
  if (kind == kSquaredRelu) return f(SquaredRelu{});
  visit_activation(kind, f);
}

// Overwrites the front of each row [gates | ups] or [x] of float32 by T, `size` of them.
template <class T>
void activate(const Inner& inner, const float* x, T* out, int64_t rows, int64_t size) {
  const int64_t width = inner.gated ? 2 * size : size;
  visit_inner(inner.kind, [&](auto act) {
    parallel_for(
        rows,
        [&](int64_t begin, int64_t end) {
          const Vec high = vset(inner.limit), low = vset(-inner.limit), shift = vset(inner.shift);
          const Vec top = vset(inner.gate_limit);
          for (int64_t r = begin; r < end; ++r) {
            const float* from = x + r * width;
            for_vectors(size, [&](int64_t i, auto lanes) {
              Vec v = active<T>(act, vmin(top, load(from + i, lanes)), inner.alpha);
              if (inner.gated) {
                v = v * (vmax(low, vmin(high, load(from + size + i, lanes))) + shift);
              }
              store(out + r * size + i, v, lanes);
            });
          }
        },
        rows_holding(kMinElementsPerThread, size));
  });
}

// The tokens of one expert; results are float32 rows [count, hidden].
template <class T>
void run_expert(const Step& step, int64_t expert, const int32_t* rows, int64_t count, char* room,
                float* results) {
  const int64_t k = step.gate_up.layout.k, size = step.down.layout.k;
  auto* gathered = (T*)room;
  auto* inner = gathered + count * k;
  linear::Call first = step.gate_up.call(expert), second = step.down.call(expert);
  first.m = second.m = count;
  first.x_dtype = second.x_dtype = step.dtype;
  first.x = (const T*)step.x + rows[0] * step.x_stride;
  first.x_stride = step.x_stride;
  if (count > 1) {
    parallel_for(
        count,
        [&](int64_t begin, int64_t end) {
          for (int64_t r = begin; r < end; ++r) {
            std::memcpy(gathered + r * k, (const T*)step.x + rows[r] * step.x_stride,
                        size_t(k) * sizeof(T));
          }
        },
        rows_holding(kMinElementsPerThread, k));
    first.x = gathered;
    first.x_stride = k;
  }
  if (step.gate_up.layout.parts > 1) {
    first.gate = step.inner.kind;
    first.y_dtype = step.dtype;
    first.y = inner;
    first.y_stride = size;
    linear::linear(first);
  } else {
    // 64-byte lines of float32 behind the rows of T.
    auto* wide = (float*)((uintptr_t(inner + count * size) + 63) & ~uintptr_t(63));
    first.gate = kNoGate;
    first.y_dtype = DType::f32;
    first.y = wide;
    first.y_stride = step.gate_up.layout.n;
    linear::linear(first);
    activate(step.inner, wide, inner, count, size);
  }
  second.x = inner;
  second.x_stride = size;
  second.gate = kNoGate;
  second.y_dtype = DType::f32;
  second.y = results;
  second.y_stride = step.down.layout.n;
  linear::linear(second);
}

template <class T>
void run(const Step& step) {
  const int64_t k = step.router.top_k, hidden = step.down.layout.n;
  const Sorted sorted = sort_tokens(step);
  int64_t most = 0;
  const int64_t held = step.placement.held, last = sorted.begin[held];
  for (int64_t e = 0; e < held; ++e) {
    most = std::max(most, sorted.begin[e + 1] - sorted.begin[e]);
  }
  const int64_t row = (step.gate_up.layout.k + step.down.layout.k) * int64_t(sizeof(T)) +
                      step.gate_up.layout.n * 4;
  const auto room = std::make_unique_for_overwrite<char[]>(size_t(most * row + 64));
  const auto results = std::make_unique_for_overwrite<float[]>(size_t(last * hidden));
  for (int64_t e = 0; e < held; ++e) {
    const int64_t begin = sorted.begin[e], count = sorted.begin[e + 1] - begin;
    if (count == 0) continue;
    run_expert<T>(step, e, &sorted.rows[begin], count, room.get(), results.get() + begin * hidden);
  }
  parallel_for(
      step.tokens,
      [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
          T* to = (T*)step.y + t * hidden;
          for_vectors(hidden, [&](int64_t i, auto lanes) {
            Vec sum = vzero();
            for (int64_t j = t * k; j < (t + 1) * k; ++j) {
              const int64_t place = sorted.place_of[j];
              // What is elsewhere adds nothing, but the weights of an unknown choice, NaN, do.
              const float* from = results.get() + place * hidden + i;
              const Vec found = place < last ? load(from, lanes) : vzero();
              sum = vfma(vset(sorted.weights[j]), found, sum);
            }
            store(to + i, sum, lanes);
          });
        }
      },
      rows_holding(kMinElementsPerThread, hidden * k));
}

void moe(int weight_dtype, uintptr_t gate_up, int64_t gate_up_stride, uintptr_t gate_up_bias,
         int64_t gate_up_n, bool fused, uintptr_t down, int64_t down_stride, uintptr_t down_bias,
         int64_t hidden, int64_t inner, int64_t experts, int64_t top_k, int scoring,
         bool renormalize, float scale, int64_t groups, int64_t groups_kept, int group_counts,
         uintptr_t correction, int kind, bool gated, float limit, float alpha, float shift,
         int64_t tokens, int dtype, uintptr_t x, int64_t x_stride, uintptr_t logits, uintptr_t y,
         int64_t held, int64_t turns, uintptr_t table, uintptr_t counts, float gate_limit,
         float jitter) {
  if (tokens == 0) return;
  const auto weights = DType(weight_dtype);
  const Step step{
      {linear::Layout(weights, gate_up_n, hidden, fused), (const char*)gate_up, gate_up_stride,
       (const float*)gate_up_bias},
      {linear::Layout(weights, hidden, inner), (const char*)down, down_stride,
       (const float*)down_bias},
      {experts, top_k, Scoring(scoring), renormalize, scale, groups, groups_kept, group_counts,
       (const float*)correction, jitter},
      {held < 0 ? experts : held, turns, (const int32_t*)table, (int32_t*)counts},
      {kind, gated, limit, alpha, shift, gate_limit > 0 ? gate_limit : limit},
      tokens,
      DType(dtype),
      (const char*)x,
      x_stride,
      (const float*)logits,
      (char*)y};
  visit_float(dtype, [&](auto type) { run<decltype(type)>(step); });
}

}  // namespace
}  // namespace hotshoe::moe

namespace hotshoe {

void bind_moe(nb::module_& m) {
  m.def("moe", recorded(&moe::moe), "weight_dtype"_a, "gate_up"_a, "gate_up_stride"_a,
        "gate_up_bias"_a, "gate_up_n"_a, "fused"_a, "down"_a, "down_stride"_a, "down_bias"_a,
        "hidden"_a, "inner"_a, "experts"_a, "top_k"_a, "scoring"_a, "renormalize"_a, "scale"_a,
        "groups"_a, "groups_kept"_a, "group_counts"_a, "correction"_a, "kind"_a, "gated"_a,
        "limit"_a, "alpha"_a, "shift"_a, "tokens"_a, "dtype"_a, "x"_a, "x_stride"_a, "logits"_a,
        "y"_a, "held"_a = -1, "turns"_a = 1, "table"_a = 0, "counts"_a = 0, "gate_limit"_a = 0.0f,
        "jitter"_a = 0.0f,
        nb::call_guard<nb::gil_scoped_release>(),
        "y[tokens, hidden] = sum over chosen experts of weight * (inner(x W1^T + b1) W2^T + b2).\n\n"
        "gate_up and down are the addresses of the first expert's packed weight, the strides the\n"
        "bytes to the next one's; biases are addresses of float32 [experts, n], or 0. gate_up has\n"
        "gate_up_n rows, and is packed gated where `fused`: inner is then act(gates) * ups of kind\n"
        "0 silu, 1 gelu or 2 gelu_tanh. Else it is act(min(g, limit)) * (clamp(u, limit) + shift)\n"
        "where `gated`, and act(min(x, limit)) where not; kind 3 squares what is positive, and\n"
        "alpha is the slope in silu(x) = x / (1 + exp(-alpha x)). A gate_limit other than 0 takes\n"
        "the place of g's and x's limit.\n\n"
        "logits [tokens, experts] float32; scoring 0 softmax, 1 sigmoid, 2 the root of ln(1 + e^x),\n"
        "3 sparsemixer, which jitter belongs to; correction float32 [experts] or 0. `held` experts,\n"
        "all with -1, have matrices here: token t finds expert e at place table[t % turns, e], int32\n"
        "[turns, experts], or elsewhere if that is `held`; with table 0 at place e. counts int32 [experts] or 0: how many tokens chose each is added.\n\n"
        "A group counts as the sum of its group_counts largest scores. Ties go to\n"
        "the first expert. A token whose logits hold NaN gets NaN. Each chosen expert's weights\n"
        "are read once for up to 4 of its tokens. Sums are float32 and in the order of the choice.\n\n"
        "Raises:\n    ValueError: dtypes that do not go together, or an unknown kind.");
}

}  // namespace hotshoe
