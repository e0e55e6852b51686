// A Mamba-2 block between its projections: convolution, scan, gate and norm. Float32 inside,
// rounded once.
//
// Source: Dao and Gu 2024, arXiv:2405.21060.

#include <nanobind/nanobind.h>

#include "activation/gates.h"
#include "record/record.h"
#include "states/convolution.h"
#include "states/logistic.h"
#include "states/recurrence.h"

namespace nb = nanobind;

namespace hotshoe::states {
namespace {

constexpr int64_t kMinElementsPerThread = 8192;  // below, waking a thread costs more

// Where the norm lies: nowhere, behind the gate, or in front of it.
enum class Norm : int { none = 0, after = 1, before = 2 };

struct Space {
  Sequences sequences;
  Convolution conv;
  Cache states;
  void* out;              // [tokens, inner]
  const void* projected;  // rows of conv.stride: z, then the convolution's inputs, then dt
  const float *a, *d, *dt_bias;
  const void* weight;
  int64_t heads, values, groups, keys;
  float least_dt, most_dt;
  Norm norm;
  int64_t norm_groups;
  float eps;

  bool silu() const { return conv.silu; }  // of the convolution and the gate; else none of either
  int64_t inner() const { return heads * values; }
};

// A head writes its results over its x among the convolution's results.
template <class T>
class Head {
 public:
  Head(const Space& space, float* mixed, int64_t head, float* memory)
      : s_(space), mixed_(mixed), head_(head), cut_{memory}, tokens_(cut_, s_.values, s_.keys),
        recurrence_(cut_, tokens_) {}

  int64_t floats() const { return cut_.floats; }

  void run(const Sequence& s) {
    run_head(
        recurrence_, s_.sequences, s, s_.states, head_ * s_.values * s_.keys,
        [&](int64_t first, int64_t count) {
          for (int64_t i = 0; i < count; ++i) take(first + i, i);
        },
        [&](int64_t first, int64_t count) {
          for (int64_t i = 0; i < count; ++i) give(first + i, i);
        });
  }

 private:
  float* x(int64_t token) const { return mixed_ + token * s_.conv.size + head_ * s_.values; }

  void take(int64_t token, int64_t i) {
    const float* b = mixed_ + token * s_.conv.size + s_.inner() +
                     head_ / (s_.heads / s_.groups) * s_.keys;
    std::copy_n(b, s_.keys, tokens_.k + i * tokens_.wide_keys);
    std::copy_n(b + s_.groups * s_.keys, s_.keys, tokens_.q + i * tokens_.wide_keys);
    const T* row = (const T*)s_.projected + token * s_.conv.stride;
    const float raw = to_float(row[s_.inner() + s_.conv.size + head_]) + s_.dt_bias[head_];
    const Vec dt = vmin(vset(s_.most_dt), vmax(vset(s_.least_dt), softplus(vset(raw))));
    tokens_.decay[i] = vfirst(vexp(dt * vset(s_.a[head_])));
    const float* from = x(token);
    float* to = tokens_.v + i * tokens_.wide_values;
    for_vectors(s_.values,
                [&](int64_t c, auto lanes) { store(to + c, dt * load(from + c, lanes), lanes); });
  }

  void give(int64_t token, int64_t i) {
    const float* y = tokens_.y + i * tokens_.wide_values;
    float* to = x(token);
    const Vec d = vset(s_.d[head_]);
    for_vectors(s_.values, [&](int64_t c, auto lanes) {
      store(to + c, vfma(d, load(to + c, lanes), load(y + c, lanes)), lanes);
    });
  }

  const Space& s_;
  float* mixed_;
  int64_t head_;
  Cut cut_;
  Tokens tokens_;
  Recurrence<false, false> recurrence_;
};

// Gates a token's results, and norms them in front of that or behind it.
template <class T>
void finish(const Space& s, float* y, int64_t token) {
  const T *z = (const T*)s.projected + token * s.conv.stride, *weight = (const T*)s.weight;
  T* out = (T*)s.out + token * s.inner();
  const int64_t size = s.inner() / s.norm_groups;
  for (int64_t first = 0; first < s.inner(); first += size) {
    const auto gated = [&](int64_t c, auto lanes) {
      const Vec gate = load(z + first + c, lanes);
      return load(y + first + c, lanes) * (s.silu() ? Silu{}.apply<float>(gate) : gate);
    };
    if (s.norm == Norm::none) {
      for_vectors(size, [&](int64_t c, auto lanes) { store(out + c, gated(c, lanes), lanes); });
    } else if (s.norm == Norm::after) {
      for_vectors(size,
                  [&](int64_t c, auto lanes) { store(y + first + c, gated(c, lanes), lanes); });
      const Vec scale = vset(inverse_rms(y + first, size, s.eps));
      for_vectors(size, [&](int64_t c, auto lanes) {
        const Vec normed = load(y + first + c, lanes) * scale;
        store(out + c, normed * load(weight + first + c, lanes), lanes);
      });
    } else {
      const Vec scale = vset(inverse_rms(y + first, size, s.eps));
      for_vectors(size, [&](int64_t c, auto lanes) {
        store(out + c, gated(c, lanes) * scale * load(weight + first + c, lanes), lanes);
      });
    }
    out += size;
  }
}

template <class T>
void run(const Space& space) {
  float* mixed = convolve(space.conv, space.sequences);
  const size_t bytes = Head<T>(space, mixed, 0, nullptr).floats() * sizeof(float);
  for_heads(space.sequences, space.heads, space.keys * space.values,
            [&](const Sequence& s, int64_t head) {
              Head<T>(space, mixed, head, (float*)thread_scratch(bytes)).run(s);
            });
  parallel_for(
      space.sequences.tokens(),
      [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) finish<T>(space, mixed + t * space.conv.size, t);
      },
      rows_holding(kMinElementsPerThread, space.inner()));
}

void state_space(uintptr_t out, uintptr_t projected, int64_t stride, uintptr_t conv_cache,
                 int64_t conv_stride, int conv_dtype, uintptr_t states, int64_t state_stride,
                 int state_dtype, uintptr_t table, int64_t table_stride, uintptr_t starts,
                 uintptr_t lens, int64_t count, uintptr_t taps, uintptr_t conv_bias, uintptr_t a,
                 uintptr_t d, uintptr_t dt_bias, uintptr_t weight, int64_t heads, int64_t values,
                 int64_t groups, int64_t keys, int64_t width, int64_t block_size, int checkpoints,
                 float least_dt, float most_dt, int norm, int64_t norm_groups, float eps,
                 bool silu, int dtype) {
  const Sequences sequences{(const int32_t*)table, table_stride, (const int32_t*)starts,
                            (const int32_t*)lens,  count,        block_size,
                            Checkpoints(checkpoints)};
  visit_float(dtype, [&](auto type) {
    using T = decltype(type);
    const int64_t inner = heads * values;
    const Convolution conv{(const T*)projected + inner,
                           stride,
                           (const void*)taps,
                           (const void*)conv_bias,
                           inner + 2 * groups * keys,
                           width,
                           dtype,
                           {(void*)conv_cache, conv_stride, conv_dtype},
                           silu};
    run<T>({sequences,   conv,
            {(void*)states, state_stride, state_dtype},
            (void*)out,  (const void*)projected, (const float*)a, (const float*)d,
            (const float*)dt_bias, (const void*)weight, heads, values, groups, keys, least_dt,
            most_dt, Norm(norm), norm_groups, eps});
  });
}

}  // namespace
}  // namespace hotshoe::states

namespace hotshoe {

void bind_state_space(nb::module_& m) {
  m.def("state_space", recorded(&states::state_space), nb::call_guard<nb::gil_scoped_release>(),
        "state_space(out, projected, stride, conv_cache, conv_stride, conv_dtype, states,\n"
        "    state_stride, state_dtype, table, table_stride, starts, lens, count, taps, conv_bias,\n"
        "    a, d, dt_bias, weight, heads, values, groups, keys, width, block_size, checkpoints,\n"
        "    least_dt, most_dt, norm, norm_groups, eps, silu, dtype)\n\n"
        "Convolution, Mamba-2 scan, gate and norm of a step over cached states. Addresses, some of\n"
        "which may be 0: conv_bias, and weight without a norm. Strides count elements. projected\n"
        "is [tokens, z | x B C | dt], conv_cache [blocks, width - 1, channels of x, B and C],\n"
        "states [blocks, heads, values, keys], table [count, columns], starts [count + 1] and lens\n"
        "[count] int32, a, d and dt_bias float32, taps, conv_bias and weight of the dtype.\n"
        "checkpoints: 0 none, 1 align, 2 all. norm: 0 none, 1 after the gate, 2 before it. silu: of\n"
        "the convolution's results and the gate.\n\n"
        "Raises:\n    ValueError: an unknown dtype.");
}

}  // namespace hotshoe
