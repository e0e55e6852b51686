// Linear attention with the gated delta rule between its projections: convolution, lengths of keys
// and queries, recurrence, norm and gate. Float32 inside, rounded once.
//
// Sources: Yang et al. 2024, arXiv:2412.06464; Kimi Team 2025, arXiv:2510.26692.

#include <nanobind/nanobind.h>

#include <cmath>

#include "activation/gates.h"
#include "record/record.h"
#include "states/convolution.h"
#include "states/logistic.h"
#include "states/recurrence.h"

namespace nb = nanobind;

namespace hotshoe::states {
namespace {

constexpr float kLengthEps = 1e-6f;  // joins squared lengths of keys and queries

struct Delta {
  Sequences sequences;
  Convolution conv;
  Cache states;
  void* out;  // [tokens, heads * values]
  const float *a, *dt_bias;
  const void* norm;
  int64_t heads, key_heads, keys, values;
  bool channel, silu;
  float eps, beta_scale;
  float floor;  // least logarithm of a decay; 0 for none

  int64_t inner() const { return heads * values; }
};

template <class T, bool kChannel>
class Head {
 public:
  Head(const Delta& delta, const float* mixed, int64_t head, float* memory)
      : d_(delta), mixed_(mixed), head_(head), cut_{memory}, tokens_(cut_, d_.values, d_.keys),
        recurrence_(cut_, tokens_) {}

  int64_t floats() const { return cut_.floats; }

  void run(const Sequence& s) {
    const int64_t offset = head_ * d_.values * d_.keys;
    run_head(
        recurrence_, d_.sequences, s, d_.states, offset,
        [&](int64_t first, int64_t count) {
          for (int64_t i = 0; i < count; ++i) take(first + i, i);
        },
        [&](int64_t first, int64_t count) {
          for (int64_t i = 0; i < count; ++i) give(first + i, i);
        });
  }

 private:
  const T* row(int64_t token) const {  // the gate, beta and decays
    return (const T*)d_.conv.inputs + token * d_.conv.stride + d_.conv.size;
  }

  void take(int64_t token, int64_t i) {
    const float* from = mixed_ + token * d_.conv.size;
    const int64_t own = head_ / (d_.heads / d_.key_heads) * d_.keys, all = d_.key_heads * d_.keys;
    direct(from + own, tokens_.q + i * tokens_.wide_keys, 1.0f / std::sqrt(float(d_.keys)));
    direct(from + all + own, tokens_.k + i * tokens_.wide_keys, 1.0f);
    std::copy_n(from + 2 * all + head_ * d_.values, d_.values, tokens_.v + i * tokens_.wide_values);
    const T *beta = row(token) + d_.inner(), *decay = beta + d_.heads;
    tokens_.beta[i] = d_.beta_scale * sigmoid(to_float(beta[head_]));
    if constexpr (kChannel) {
      const T* mine = decay + head_ * d_.keys;
      const float* bias = d_.dt_bias + head_ * d_.keys;
      float* to = tokens_.decay + i * tokens_.wide_keys;
      for_vectors(d_.keys, [&](int64_t c, auto lanes) {
        store(to + c, decay_of(load(mine + c, lanes) + load(bias + c, lanes)), lanes);
      });
    } else {
      tokens_.decay[i] = vfirst(decay_of(vset(to_float(decay[head_]) + d_.dt_bias[head_])));
    }
  }

  Vec decay_of(Vec x) const {
    const Vec rate = vset(d_.a[head_]);
    if (d_.floor == 0.0f) return vexp(rate * softplus(x));
    return vexp(over_one_plus_exp<float>(vset(d_.floor), rate * x));
  }

  // A vector of length `scale`.
  void direct(const float* from, float* to, float scale) const {
    Vec squares = vzero();
    for_vectors(d_.keys, [&](int64_t c, auto lanes) {
      const Vec x = load(from + c, lanes);
      squares = vfma(x, x, squares);
    });
    const Vec by = vset(scale / std::sqrt(vsum(squares) + kLengthEps));
    for_vectors(d_.keys,
                [&](int64_t c, auto lanes) { store(to + c, by * load(from + c, lanes), lanes); });
  }

  void give(int64_t token, int64_t i) {
    const float* y = tokens_.y + i * tokens_.wide_values;
    const T *z = row(token) + head_ * d_.values, *norm = (const T*)d_.norm;
    T* out = (T*)d_.out + token * d_.inner() + head_ * d_.values;
    const Vec scale = vset(inverse_rms(y, d_.values, d_.eps));
    for_vectors(d_.values, [&](int64_t c, auto lanes) {
      const Vec gate = load(z + c, lanes), up = d_.silu ? gate : vset(1.0f);
      const Vec normed = load(y + c, lanes) * scale * load(norm + c, lanes);
      store(out + c, normed * over_one_plus_exp<T>(up, vzero() - gate), lanes);
    });
  }

  const Delta& d_;
  const float* mixed_;
  int64_t head_;
  Cut cut_;
  Tokens tokens_;
  Recurrence<true, kChannel> recurrence_;
};

template <class T, bool kChannel>
void run(const Delta& delta) {
  using One = Head<T, kChannel>;
  const float* mixed = convolve(delta.conv, delta.sequences);
  const size_t bytes = One(delta, mixed, 0, nullptr).floats() * sizeof(float);
  for_heads(delta.sequences, delta.heads, delta.keys * delta.values,
            [&](const Sequence& s, int64_t head) {
              One(delta, mixed, head, (float*)thread_scratch(bytes)).run(s);
            });
}

void gated_delta(uintptr_t out, uintptr_t projected, int64_t stride, uintptr_t conv_cache,
                 int64_t conv_stride, int conv_dtype, uintptr_t states, int64_t state_stride,
                 int state_dtype, uintptr_t table, int64_t table_stride, uintptr_t starts,
                 uintptr_t lens, int64_t count, uintptr_t taps, uintptr_t a, uintptr_t dt_bias,
                 uintptr_t norm, int64_t heads, int64_t key_heads, int64_t keys, int64_t values,
                 int64_t width, int64_t block_size, int checkpoints, bool channel, bool silu,
                 float eps, float beta_scale, float floor, int dtype) {
  const Sequences sequences{(const int32_t*)table, table_stride, (const int32_t*)starts,
                            (const int32_t*)lens,  count,        block_size,
                            Checkpoints(checkpoints)};
  const Convolution conv{(const void*)projected,
                         stride,
                         (const void*)taps,
                         nullptr,
                         2 * key_heads * keys + heads * values,
                         width,
                         dtype,
                         {(void*)conv_cache, conv_stride, conv_dtype}};
  const Delta delta{sequences,  conv,           {(void*)states, state_stride, state_dtype},
                    (void*)out, (const float*)a, (const float*)dt_bias,
                    (const void*)norm, heads,   key_heads, keys, values, channel, silu, eps,
                    beta_scale, floor};
  visit_float(dtype, [&](auto type) {
    using T = decltype(type);
    channel ? run<T, true>(delta) : run<T, false>(delta);
  });
}

}  // namespace
}  // namespace hotshoe::states

namespace hotshoe {

void bind_gated_delta(nb::module_& m) {
  m.def("gated_delta", recorded(&states::gated_delta), nb::call_guard<nb::gil_scoped_release>(),
        "gated_delta(out, projected, stride, conv_cache, conv_stride, conv_dtype, states,\n"
        "    state_stride, state_dtype, table, table_stride, starts, lens, count, taps, a, dt_bias,\n"
        "    norm, heads, key_heads, keys, values, width, block_size, checkpoints, channel, silu,\n"
        "    eps, beta_scale, floor, dtype)\n\n"
        "Convolution, gated delta rule, norm and gate of a step over cached states. Addresses;\n"
        "strides count elements. projected is [tokens, q k v | z | beta | decays], conv_cache\n"
        "[blocks, width - 1, channels of q, k and v], states [blocks, heads, values, keys], table\n"
        "[count, columns], starts [count + 1] and lens [count] int32, a and dt_bias float32, taps\n"
        "and norm of the dtype. checkpoints: 0 none, 1 align, 2 all.\n\n"
        "Raises:\n    ValueError: an unknown dtype.");
}

}  // namespace hotshoe
