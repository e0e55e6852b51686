// A Mamba-1 block's convolution, and its scan with the gate behind; and the short convolution between
// gates, which has no scan. Float32 inside, rounded once.
//
// Sources: Gu and Dao 2023, arXiv:2312.00752; Liquid AI 2025, arXiv:2511.23404.

#include <nanobind/nanobind.h>

#include "activation/gates.h"
#include "record/record.h"
#include "states/convolution.h"
#include "states/logistic.h"
#include "states/recurrence.h"

namespace nb = nanobind;

namespace hotshoe::states {
namespace {

constexpr int64_t kStrip = 64;  // channels of a task
constexpr int64_t kTokens = 32;  // of a tile: its steps of time and results stay in the first cache

struct Scan {
  Sequences sequences;
  Cache states;       // blocks of [inner, keys]
  void* out;          // [tokens, inner]
  const void* gates;  // rows of gate_stride
  int64_t gate_stride;
  const float *mixed, *time;  // [tokens, inner]
  const float *b, *c;         // rows of [keys], made_stride apart
  int64_t made_stride;
  const float *a, *d, *dt_bias;  // [inner, keys], and [inner] each
  int64_t inner, keys;
};

// Channels [first, first + count) of one sequence. A channel's state stays in registers for a tile.
template <class T, class S>
class Strip {
 public:
  Strip(const Scan& scan, int64_t first, float* memory)
      : s_(scan), first_(first), count_(std::min(kStrip, scan.inner - first)) {
    Cut cut{memory};
    state_ = cut(kStrip * s_.keys);
    dt_ = cut(kTokens * kStrip);
    added_ = cut(kTokens * kStrip);
    y_ = cut(kTokens * kStrip);
    floats_ = cut.floats;
  }

  int64_t floats() const { return floats_; }

  void run(const Sequence& s) {
    const int64_t size = count_ * s_.keys;
    const auto block = [&](int64_t length) { return s_.sequences.block(s, length); };
    const int64_t own = first_ * s_.keys;
    s.before > 0 ? convert_row(s_.states.at<S>(block(s.before), own), state_, size) : fill(size);
    for (int64_t done = 0; done < s.count;) {
      const int64_t kept = s_.sequences.next_kept(s, done);
      while (done < kept) {
        const int64_t count = std::min(kTokens, kept - done);
        tile(s.begin + done, count);
        done += count;
      }
      const int64_t to = block(s.before + kept);
      convert_row((const float*)state_, s_.states.place<S>(to, own, size), size);
    }
  }

 private:
  void fill(int64_t size) { std::fill_n(state_, size, 0.0f); }

  void tile(int64_t token, int64_t count) {
    for (int64_t t = 0; t < count; ++t) take(token + t, t * kStrip);
    const float *b = s_.b + token * s_.made_stride, *c = s_.c + token * s_.made_stride;
    for (int64_t p = 0; p < count_; ++p) {
      const float* rates = s_.a + (first_ + p) * s_.keys;
      for_vectors(s_.keys, [&](int64_t k, auto lanes) {
        float* held = state_ + p * s_.keys + k;
        Vec state = load(held, lanes);
        const Vec rate = load(rates + k, lanes);
        for (int64_t t = 0; t < count; ++t) {
          const int64_t at = t * kStrip + p, row = t * s_.made_stride + k;
          const Vec decay = vexp(vset(dt_[at]) * rate);
          state = vfma(state, decay, vset(added_[at]) * load(b + row, lanes));
          y_[at] += vsum(state * load(c + row, lanes));
        }
        store(held, state, lanes);
      });
    }
    for (int64_t t = 0; t < count; ++t) give(token + t, t * kStrip);
  }

  void take(int64_t token, int64_t at) {
    const int64_t row = token * s_.inner + first_;
    for_vectors(count_, [&](int64_t p, auto lanes) {
      const Vec dt = softplus(load(s_.time + row + p, lanes) + load(s_.dt_bias + first_ + p, lanes));
      store(dt_ + at + p, dt, lanes);
      store(added_ + at + p, dt * load(s_.mixed + row + p, lanes), lanes);
      store(y_ + at + p, vzero(), lanes);
    });
  }

  void give(int64_t token, int64_t at) {
    const int64_t row = token * s_.inner + first_;
    const T* z = (const T*)s_.gates + token * s_.gate_stride + first_;
    T* out = (T*)s_.out + row;
    for_vectors(count_, [&](int64_t p, auto lanes) {
      const Vec skip = load(s_.d + first_ + p, lanes) * load(s_.mixed + row + p, lanes);
      const Vec y = load(y_ + at + p, lanes) + skip;
      store(out + p, y * Silu{}.apply<float>(load(z + p, lanes)), lanes);
    });
  }

  const Scan& s_;
  int64_t first_, count_, floats_;
  float *state_, *dt_, *added_, *y_;  // [kStrip, keys], and [kTokens, kStrip] each
};

void selective_scan(uintptr_t out, uintptr_t gates, int64_t gate_stride, uintptr_t mixed,
                    uintptr_t time, uintptr_t b, uintptr_t c, int64_t made_stride, uintptr_t states,
                    int64_t state_stride, int state_dtype, uintptr_t table, int64_t table_stride,
                    uintptr_t starts, uintptr_t lens, int64_t count, uintptr_t a, uintptr_t d,
                    uintptr_t dt_bias, int64_t inner, int64_t keys, int64_t block_size,
                    int checkpoints, int dtype) {
  const Scan scan{{(const int32_t*)table, table_stride, (const int32_t*)starts,
                   (const int32_t*)lens,  count,        block_size,
                   Checkpoints(checkpoints)},
                  {(void*)states, state_stride, state_dtype},
                  (void*)out,
                  (const void*)gates,
                  gate_stride,
                  (const float*)mixed,
                  (const float*)time,
                  (const float*)b,
                  (const float*)c,
                  made_stride,
                  (const float*)a,
                  (const float*)d,
                  (const float*)dt_bias,
                  inner,
                  keys};
  visit_float(dtype, [&](auto type) {
    visit_float(state_dtype, [&](auto kept) {
      using Run = Strip<decltype(type), decltype(kept)>;
      const size_t bytes = Run(scan, 0, nullptr).floats() * sizeof(float);
      for_heads(scan.sequences, (inner + kStrip - 1) / kStrip, kStrip * keys,
                [&](const Sequence& s, int64_t strip) {
                  Run(scan, strip * kStrip, (float*)thread_scratch(bytes)).run(s);
                });
    });
  });
}

void convolve_inputs(uintptr_t out, uintptr_t inputs, int64_t stride, uintptr_t cache,
                     int64_t cache_stride, int cache_dtype, uintptr_t table, int64_t table_stride,
                     uintptr_t starts, uintptr_t lens, int64_t count, uintptr_t taps,
                     uintptr_t bias, int64_t size, int64_t width, int64_t block_size,
                     int checkpoints, int dtype, bool gated) {
  const Sequences sequences{(const int32_t*)table, table_stride, (const int32_t*)starts,
                            (const int32_t*)lens,  count,        block_size,
                            Checkpoints(checkpoints)};
  const Convolution conv{(const void*)inputs,
                         stride,
                         (const void*)taps,
                         (const void*)bias,
                         size,
                         width,
                         dtype,
                         {(void*)cache, cache_stride, cache_dtype}};
  gated ? convolve_gated(conv, sequences, (void*)out) : convolve(conv, sequences, (float*)out);
}

}  // namespace
}  // namespace hotshoe::states

namespace hotshoe {

void bind_selective_scan(nb::module_& m) {
  m.def("convolve", recorded(&states::convolve_inputs), nb::call_guard<nb::gil_scoped_release>(),
        "convolve(out, inputs, stride, cache, cache_stride, cache_dtype, table, table_stride,\n"
        "    starts, lens, count, taps, bias, size, width, block_size, checkpoints, dtype, gated)\n\n"
        "Causal convolution of a step over cached inputs. Addresses; bias may be 0. Without gated,\n"
        "inputs are [tokens, size], and SiLU of the sums goes to out [tokens, size] float32. With\n"
        "it they are [tokens, gate | gate behind | x], and out has the dtype. cache is [blocks,\n"
        "width - 1, size]; the rest as in state_space.\n\nRaises:\n    ValueError: an unknown dtype.");
  m.def("selective_scan", recorded(&states::selective_scan),
        nb::call_guard<nb::gil_scoped_release>(),
        "selective_scan(out, gates, gate_stride, mixed, time, b, c, made_stride, states,\n"
        "    state_stride, state_dtype, table, table_stride, starts, lens, count, a, d, dt_bias,\n"
        "    inner, keys, block_size, checkpoints, dtype)\n\n"
        "Mamba-1 scan of a step over cached states, and its gate. Addresses; strides count\n"
        "elements. out is [tokens, inner] of the dtype, as gates are; mixed, the convolution's\n"
        "results, and time, the steps before dt_bias is added, are [tokens, inner], b and c rows\n"
        "of [keys], all float32; states [blocks, inner, keys], a [inner, keys], d and dt_bias [inner]\n"
        "float32; the rest as in state_space.\n\nRaises:\n    ValueError: an unknown dtype.");
}

}  // namespace hotshoe
