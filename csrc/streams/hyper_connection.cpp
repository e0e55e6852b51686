// Several residual streams of a token: how the output of a block joins them, and what the next block
// takes. Float32 inside; streams are rounded once, and logits follow from them as they are rounded.
//
// Sources: Xie et al. 2026, arXiv:2512.24880; Sinkhorn and Knopp 1967.

#include <nanobind/nanobind.h>

#include <memory>

#include "common/parallel.h"
#include "common/rows.h"
#include "record/record.h"
#include "states/logistic.h"

namespace nb = nanobind;

namespace hotshoe::streams {
namespace {

constexpr int64_t kTokens = 32;      // of a unit of products
constexpr int64_t kChannels = 1024;  // whose part of the matrix stays in a cache for all of them
constexpr int kTileTokens = kVectorRegisters >= 32 ? 4 : 2;
constexpr int kTileOutputs = 4;
constexpr int64_t kMinProducts = 1 << 16;  // below, waking a thread costs more
constexpr int64_t kMinElements = 1 << 14;  // likewise

struct Joint {
  const void* streams;  // [tokens, count, size]
  int64_t token_stride, stream_stride;
  const void* out;  // of the block in front, null for none
  int64_t out_stride;
  const float* before;  // the gates by which it joins
  int64_t before_stride;
  void *joined, *taken;  // dense; the first one is written where there is a block
  float* gates;
  const float *fn, *base, *scale;
  int64_t tokens, count, size, iterations;
  float eps, norm_eps, magnitude;
  bool mixes, ends;

  int64_t kept() const { return ends ? 0 : count * (1 + count * mixes); }
  int64_t outputs() const { return count + kept(); }
};

template <class T>
class Connection {
 public:
  explicit Connection(const Joint& job)
      : job_(job),
        outputs_(job.outputs()),
        joined_((const T*)(job.out ? job.joined : job.streams)),
        token_stride_(job.out ? job.count * job.size : job.token_stride),
        stream_stride_(job.out ? job.size : job.stream_stride),
        logits_(new float[size_t(job.tokens * outputs_)]) {}

  void run() {
    const int64_t tokens = job_.tokens, row = job_.count * job_.size;
    if (job_.out) {
      parallel_for(
          tokens,
          [&](int64_t begin, int64_t end) {
            for (int64_t token = begin; token < end; ++token) join(token);
          },
          rows_holding(kMinElements, row * job_.count));
    }
    const int64_t blocks = (tokens + kTokens - 1) / kTokens, threads = num_threads();
    int64_t parts = 1;
    if (blocks < threads && tokens * outputs_ * row >= kMinProducts) {
      const int64_t tiles = (outputs_ + kTileOutputs - 1) / kTileOutputs;
      parts = std::min(tiles, (threads + blocks - 1) / blocks);
    }
    const int64_t per = (outputs_ / parts + kTileOutputs - 1) / kTileOutputs * kTileOutputs;
    const int64_t cuts = (outputs_ + per - 1) / per;
    parallel_dynamic(blocks * cuts, [&](int64_t i) {
      const int64_t token = i / cuts * kTokens, output = i % cuts * per;
      multiply(token, std::min(tokens, token + kTokens), output, std::min(outputs_, output + per));
    });
    parallel_for(
        tokens,
        [&](int64_t begin, int64_t end) {
          for (int64_t token = begin; token < end; ++token) open(token);
        },
        rows_holding(kMinElements, row));
  }

 private:
  const T* stream(int64_t token, int64_t i) const {
    return joined_ + token * token_stride_ + i * stream_stride_;
  }

  // Adds what the block put out to the streams, which mix by the matrix of its gates.
  void join(int64_t token) {
    const int64_t count = job_.count, size = job_.size;
    const T* from = (const T*)job_.streams + token * job_.token_stride;
    const T* out = (const T*)job_.out + token * job_.out_stride;
    const float *post = job_.before + token * job_.before_stride, *mix = post + count;
    T* to = (T*)job_.joined + token * count * size;
    for (int64_t j = 0; j < count; ++j) {
      const Vec factor = vset(post[j]);
      for_vectors(size, [&](int64_t at, auto lanes) {
        Vec sum = factor * load(out + at, lanes);
        if (job_.mixes) {
          for (int64_t i = 0; i < count; ++i) {
            const T* other = from + i * job_.stream_stride;
            sum = vfma(vset(mix[i * count + j]), load(other + at, lanes), sum);
          }
        } else {
          sum += load(from + j * job_.stream_stride + at, lanes);
        }
        store(to + j * size + at, sum, lanes);
      });
    }
  }

  // Products of some tokens' streams, not yet normed, and rows of the matrix.
  void multiply(int64_t begin, int64_t end, int64_t first, int64_t last) {
    const int64_t size = job_.size, width = job_.count * size;
    for (int64_t token = begin; token < end; ++token) {
      std::fill(logits(token) + first, logits(token) + last, 0.0f);
    }
    for (int64_t i = 0; i < job_.count; ++i) {
      for (int64_t at = 0; at < size; at += kChannels) {
        const int64_t n = std::min(kChannels, size - at);
        const float* columns = job_.fn + i * size + at;
        int64_t token = begin;
        for (; token + kTileTokens <= end; token += kTileTokens) {
          strip<kTileTokens>(token, stream(token, i) + at, columns, width, first, last, n);
        }
        for (; token < end; ++token) {
          strip<1>(token, stream(token, i) + at, columns, width, first, last, n);
        }
      }
    }
  }

  template <int M>
  void strip(int64_t token, const T* x, const float* columns, int64_t width, int64_t first,
             int64_t last, int64_t n) {
    for (; first + kTileOutputs <= last; first += kTileOutputs) {
      tile<M, kTileOutputs>(token, x, columns + first * width, width, first, n);
    }
    for (; first < last; ++first) tile<M, 1>(token, x, columns + first * width, width, first, n);
  }

  template <int M, int N>
  void tile(int64_t token, const T* x, const float* columns, int64_t width, int64_t output,
            int64_t n) {
    Vec sums[M][N];
    for (auto& row : sums) {
      for (Vec& sum : row) sum = vzero();
    }
    for_vectors(n, [&](int64_t at, auto lanes) {
      Vec by[N];
      for (int k = 0; k < N; ++k) by[k] = load(columns + k * width + at, lanes);
      for (int m = 0; m < M; ++m) {
        const Vec value = load(x + m * token_stride_ + at, lanes);
        for (int k = 0; k < N; ++k) sums[m][k] = vfma(value, by[k], sums[m][k]);
      }
    });
    for (int m = 0; m < M; ++m) {
      for (int k = 0; k < N; ++k) logits(token + m)[output + k] += vsum(sums[m][k]);
    }
  }

  // Makes factors of a token's logits, and of its streams what the next block takes.
  void open(int64_t token) {
    const int64_t count = job_.count, size = job_.size;
    Vec squares = vzero();
    for (int64_t i = 0; i < count; ++i) {
      for_vectors(size, [&](int64_t at, auto lanes) {
        const Vec value = load(stream(token, i) + at, lanes);
        squares = vfma(value, value, squares);
      });
    }
    const float mean = vsum(squares) / float(count * size);
    const float inverse = 1.0f / std::sqrt(mean + job_.norm_eps);
    float* logit = logits(token);
    for (int64_t k = 0; k < outputs_; ++k) {
      const float scale = job_.scale[k < count ? 0 : k < 2 * count ? 1 : 2];
      logit[k] = logit[k] * inverse * scale + job_.base[k];
    }
    for (int64_t i = 0; i < count; ++i) logit[i] = states::sigmoid(logit[i]) + job_.eps;
    T* taken = (T*)job_.taken + token * size;
    for_vectors(size, [&](int64_t at, auto lanes) {
      Vec sum = vzero();
      for (int64_t i = 0; i < count; ++i) {
        sum = vfma(vset(logit[i]), load(stream(token, i) + at, lanes), sum);
      }
      store(taken + at, sum, lanes);
    });
    if (job_.ends) return;
    const float more = job_.mixes ? 0.0f : job_.eps;
    float* gates = job_.gates + token * job_.kept();
    for (int64_t i = 0; i < count; ++i) {
      gates[i] = job_.magnitude * states::sigmoid(logit[count + i]) + more;
    }
    if (job_.mixes) balance(logit + 2 * count, gates + count);
  }

  // Brings the exponentials of a matrix near to rows and columns that sum to 1.
  void balance(const float* logit, float* to) {
    const int64_t count = job_.count;
    for (int64_t i = 0; i < count; ++i, logit += count) {
      float* row = to + i * count;
      const float largest = *std::max_element(logit, logit + count);
      float total = 0;
      for (int64_t j = 0; j < count; ++j) {
        row[j] = states::exponential(logit[j] - largest);
        total += row[j];
      }
      for (int64_t j = 0; j < count; ++j) row[j] = row[j] / total + job_.eps;
    }
    for (int64_t turn = 1; turn < 2 * job_.iterations; ++turn) {
      const bool columns = turn % 2 == 1;
      const int64_t step = columns ? count : 1, next = columns ? 1 : count;
      for (int64_t i = 0; i < count; ++i) {
        float* line = to + i * next;
        float total = job_.eps;
        for (int64_t j = 0; j < count; ++j) total += line[j * step];
        for (int64_t j = 0; j < count; ++j) line[j * step] /= total;
      }
    }
  }

  float* logits(int64_t token) { return logits_.get() + token * outputs_; }

  const Joint& job_;
  const int64_t outputs_;
  const T* joined_;
  const int64_t token_stride_, stream_stride_;
  const std::unique_ptr<float[]> logits_;
};

void hyper_connection(uintptr_t joined, uintptr_t taken, uintptr_t gates, uintptr_t streams,
                      int64_t token_stride, int64_t stream_stride, uintptr_t out,
                      int64_t out_stride, uintptr_t before, int64_t before_stride, uintptr_t fn,
                      uintptr_t base, uintptr_t scale, int64_t tokens, int64_t count, int64_t size,
                      int64_t iterations, float eps, float norm_eps, float magnitude, bool mixes,
                      bool ends, int dtype) {
  const Joint job{(const void*)streams,
                  token_stride,
                  stream_stride,
                  (const void*)out,
                  out_stride,
                  (const float*)before,
                  before_stride,
                  (void*)joined,
                  (void*)taken,
                  (float*)gates,
                  (const float*)fn,
                  (const float*)base,
                  (const float*)scale,
                  tokens,
                  count,
                  size,
                  iterations,
                  eps,
                  norm_eps,
                  magnitude,
                  mixes,
                  ends};
  visit_float(dtype, [&](auto type) { Connection<decltype(type)>(job).run(); });
}

}  // namespace
}  // namespace hotshoe::streams

namespace hotshoe {

void bind_hyper_connection(nb::module_& m) {
  m.def("hyper_connection", recorded(&streams::hyper_connection),
        nb::call_guard<nb::gil_scoped_release>(),
        "hyper_connection(joined, taken, gates, streams, token_stride, stream_stride, out,\n"
        "    out_stride, before, before_stride, fn, base, scale, tokens, count, size, iterations,\n"
        "    eps, norm_eps, magnitude, mixes, ends, dtype)\n\n"
        "Join what a block put out with residual streams, and say what the next one takes.\n"
        "Addresses; strides count elements. streams [tokens, count, size], out [tokens, size] and\n"
        "the results joined, like streams but dense, and taken, like out, have the dtype; others\n"
        "are float32: gates of the next block and of the one `before`, [tokens, count] each, or\n"
        "[tokens, count + count * count] where streams mix, fn [outputs, count * size], base\n"
        "[outputs], scale [1 to 3]. Without a block out is 0, and joined is not written; with\n"
        "`ends` gates are not.\n\n"
        "Raises:\n    ValueError: an unknown dtype.");
}

}  // namespace hotshoe
