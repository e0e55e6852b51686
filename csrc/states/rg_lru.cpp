// A recurrent block of Griffin between its projections: convolution, gates, recurrence and the gate
// behind. Float32 inside, rounded once.
//
// Source: De et al. 2024, arXiv:2402.19427, section 2.4 (RG-LRU).

#include <nanobind/nanobind.h>

#include "activation/gates.h"
#include "record/record.h"
#include "states/convolution.h"
#include "states/recurrence.h"

namespace nb = nanobind;

namespace hotshoe::states {
namespace {

constexpr int64_t kStrip = 64;   // channels of a task
constexpr int64_t kTokens = 32;  // whose gates are made at once
constexpr int64_t kMinProducts = 1 << 17;  // of a step; below, waking a thread costs more
constexpr int64_t kRowsAhead = 16;         // of a matrix, which are fetched early

struct Griffin {
  Sequences sequences;
  Convolution conv;
  Cache states;        // blocks of [inner]
  void* out;           // [tokens, inner]
  const void* behind;  // rows of conv.stride
  const float* gates;  // [heads, size, input | decay of size each]
  const float* bias;   // [input | decay, inner]
  const float* rate;   // [inner]
  int64_t inner, size;  // channels, and those of a head
};

struct Decay {
  Vec kept, lost;  // a and 1 - a
};

// e^x and what it lacks of 1, as exactly where x is nearly 0; x <= 0.
inline Decay decay_of(Vec x) {
  const Vec one = vset(1.0f);
  const ExpTerms e = vexp_terms(vmax(vset(-100.0f), x));  // a number times 2^n = 0
  const Vec more = vfma(e.p, e.r * e.r, e.r), scale = vscale2(one, e.n);
  return {vscale2(one + more, e.n), vfma(vzero() - scale, more, one - scale)};
}

inline Vec logistic(Vec x) { return over_one_plus_exp<float>(vset(1.0f), vzero() - x); }

// Channels of one head, for all sequences of a step: their columns of the matrix are read once for
// many tokens, of whichever sequences.
template <class T, class S>
class Strip {
 public:
  Strip(const Griffin& block, const float* mixed, int64_t head, int64_t first, float* memory)
      : b_(block),
        channel_(head * block.size + first),
        count_(std::min(kStrip, block.size - first)),
        x_(mixed + head * block.size),
        columns_(block.gates + head * block.size * 2 * block.size + first),
        own_(first),
        state_(memory),
        opening_(state_ + kStrip),
        decay_(opening_ + kTokens * kStrip) {}

  static constexpr int64_t kFloats = kStrip * (1 + 2 * kTokens);

  void run() {
    const Sequences& all = b_.sequences;
    int64_t begin = 0, end = 0;  // of the tokens whose gates are made
    for (int64_t i = 0; i < all.count; ++i) {
      const Sequence s = all[i];
      if (s.count == 0) continue;
      if (s.before > 0) {
        convert_row(b_.states.template at<S>(all.block(s, s.before), channel_), state_, count_);
      } else {
        std::fill_n(state_, kStrip, 0.0f);
      }
      for (int64_t done = 0; done < s.count;) {
        const int64_t kept = all.next_kept(s, done);
        for (; done < kept; ++done) {
          const int64_t token = s.begin + done;
          if (token == end) {
            begin = end;
            end = std::min(begin + kTokens, all.tokens());
            make(begin, end - begin);
          }
          take(token, (token - begin) * kStrip, s.before + done == 0);
        }
        const int64_t block = all.block(s, s.before + kept);
        S* to = b_.states.template place<S>(block, channel_, count_);
        convert_row((const float*)state_, to, count_);
      }
    }
  }

 private:
  // Makes the gates of `count` tokens, but for biases.
  void make(int64_t first, int64_t count) {
    const float* x = x_ + first * b_.inner;
    int64_t i = 0;
    for_tiles(count, [&](int64_t token, auto tile) {
      constexpr int kWide = tile == 1 ? 4 : tile == 2 ? 2 : 1;
      for (i = 0; i + kWide * VL <= count_; i += kWide * VL) {
        multiply<tile, kWide>(x, token, i, WholeVector{});
      }
      for_vectors(count_ - i,
                  [&](int64_t at, auto lanes) { multiply<tile, 1>(x, token, i + at, lanes); });
    });
  }

  // M tokens times W vectors of columns of both gates.
  template <int M, int W, class L>
  void multiply(const float* x, int64_t token, int64_t at, L lanes) {
    const int64_t size = b_.size, inner = b_.inner;
    const float *rows = x + token * inner, *columns = columns_ + at;
    Vec sums[M][2 * W];
    for (auto& row : sums) {
      for (Vec& sum : row) sum = vzero();
    }
    for (int64_t k = 0; k < size; ++k, columns += 2 * size) {
      Vec by[2 * W];
      for (int w = 0; w < W; ++w) {
        by[w] = load(columns + w * VL, lanes);
        by[W + w] = load(columns + size + w * VL, lanes);
        __builtin_prefetch(columns + kRowsAhead * 2 * size + w * VL);
        __builtin_prefetch(columns + kRowsAhead * 2 * size + size + w * VL);
      }
      for (int m = 0; m < M; ++m) {
        const Vec one = vset(rows[m * inner + k]);
        for (int w = 0; w < 2 * W; ++w) sums[m][w] = vfma(one, by[w], sums[m][w]);
      }
    }
    for (int m = 0; m < M; ++m) {
      for (int w = 0; w < W; ++w) {
        const int64_t to = (token + m) * kStrip + at + w * VL;
        store(opening_ + to, sums[m][w], lanes);
        store(decay_ + to, sums[m][W + w], lanes);
      }
    }
  }

  // Takes a token, whose gates lie at `at`.
  void take(int64_t token, int64_t at, bool begins) {
    const float *x = x_ + token * b_.inner + own_, *bias = b_.bias + channel_;
    const T* behind = (const T*)b_.behind + token * b_.conv.stride + channel_;
    T* out = (T*)b_.out + token * b_.inner + channel_;
    for_vectors(count_, [&](int64_t i, auto lanes) {
      const Vec opening = logistic(load(opening_ + at + i, lanes) + load(bias + i, lanes));
      const Vec open = logistic(load(decay_ + at + i, lanes) + load(bias + b_.inner + i, lanes));
      const Decay a = decay_of(load(b_.rate + channel_ + i, lanes) * open);
      const Vec scale = begins ? vset(1.0f) : vsqrt(a.lost * (vset(1.0f) + a.kept));
      const Vec added = scale * opening * load(x + i, lanes);
      const Vec next = vfma(a.kept, load(state_ + i, lanes), added);
      store(state_ + i, next, lanes);
      store(out + i, next * GeluTanh{}.apply<float>(load(behind + i, lanes)), lanes);
    });
  }

  const Griffin& b_;
  int64_t channel_, count_;
  const float *x_, *columns_;  // of the head, and of the strip's gates of the input
  int64_t own_;                // the strip's first channel within the head
  float *state_, *opening_, *decay_;  // [kStrip], and [kTokens, kStrip] each
};

template <class T, class S>
void run(const Griffin& block) {
  using One = Strip<T, S>;
  const float* mixed = convolve(block.conv, block.sequences);
  const int64_t strips = (block.size + kStrip - 1) / kStrip;
  const auto task = [&](int64_t i) {
    auto* memory = (float*)thread_scratch(One::kFloats * sizeof(float));
    One(block, mixed, i / strips, i % strips * kStrip, memory).run();
  };
  const int64_t tasks = block.inner / block.size * strips;
  const int64_t products = block.sequences.tokens() * block.inner * 2 * block.size;
  if (products >= kMinProducts) return parallel_dynamic(tasks, task);
  for (int64_t i = 0; i < tasks; ++i) task(i);
}

void rg_lru(uintptr_t out, uintptr_t projected, int64_t stride, uintptr_t conv_cache,
            int64_t conv_stride, int conv_dtype, uintptr_t states, int64_t state_stride,
            int state_dtype, uintptr_t table, int64_t table_stride, uintptr_t starts,
            uintptr_t lens, int64_t count, uintptr_t taps, uintptr_t conv_bias, uintptr_t gates,
            uintptr_t gate_bias, uintptr_t rate, int64_t inner, int64_t heads, int64_t width,
            int64_t block_size, int checkpoints, int dtype) {
  const Sequences sequences{(const int32_t*)table, table_stride, (const int32_t*)starts,
                            (const int32_t*)lens,  count,        block_size,
                            Checkpoints(checkpoints)};
  const Convolution conv{(const void*)projected,
                         stride,
                         (const void*)taps,
                         (const void*)conv_bias,
                         inner,
                         width,
                         dtype,
                         {(void*)conv_cache, conv_stride, conv_dtype},
                         false};
  visit_float(dtype, [&](auto type) {
    using T = decltype(type);
    const Griffin block{sequences,
                        conv,
                        {(void*)states, state_stride, state_dtype},
                        (void*)out,
                        (const T*)projected + inner,
                        (const float*)gates,
                        (const float*)gate_bias,
                        (const float*)rate,
                        inner,
                        inner / heads};
    visit_float(state_dtype, [&](auto kept) { run<T, decltype(kept)>(block); });
  });
}

}  // namespace
}  // namespace hotshoe::states

namespace hotshoe {

void bind_rg_lru(nb::module_& m) {
  m.def("rg_lru", recorded(&states::rg_lru), nb::call_guard<nb::gil_scoped_release>(),
        "rg_lru(out, projected, stride, conv_cache, conv_stride, conv_dtype, states, state_stride,\n"
        "    state_dtype, table, table_stride, starts, lens, count, taps, conv_bias, gates,\n"
        "    gate_bias, rate, inner, heads, width, block_size, checkpoints, dtype)\n\n"
        "Convolution, gates, RG-LRU and the gate behind of a step over cached states. Addresses;\n"
        "strides count elements. projected is [tokens, x | gate behind], conv_cache [blocks,\n"
        "width - 1, inner], states [blocks, inner], gates [heads, inner / heads, gates of the input |\n"
        "of the decay], gate_bias [2, inner] and rate [inner], all three float32; taps and\n"
        "conv_bias have the dtype; the rest as in state_space.\n\n"
        "Raises:\n    ValueError: an unknown dtype.");
}

}  // namespace hotshoe
