// What low-rank adapters add to a product: y[t] += b[p]^T (a[p] x[t]), p the adapter of token t.
//
// Tokens of an adapter are gathered by their numbers, so that its factors are read once for up to
// kChunk of them. Sums are float and y is rounded once. A row's result does not depend on others.
//
// Source: Low-rank adaptation, arXiv:2106.09685.

#include <nanobind/nanobind.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "attention/dot.h"
#include "common/parallel.h"
#include "common/rows.h"
#include "record/record.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace hotshoe::lora {
namespace {

constexpr int64_t kChunk = 32;                     // tokens of a task
constexpr int kTokens = 4, kRows = 4;              // of a tile, whose sums are in registers
constexpr int64_t kColumns = 512;                  // of y that a task adds to
constexpr int64_t kRanks = 8;                      // rows of b side by side: no cache keeps more
constexpr int64_t kMinElementsPerThread = 8192;    // of factors; below, waking a thread costs more
constexpr int kNear = 2;                           // how close what is fetched early comes

// Rows [first_rank, end_rank) of b, which are zero outside of columns [begin, end).
struct Part {
  int64_t first_rank, end_rank, begin, end;
};

struct Step {
  void* y;
  int64_t y_stride;
  const void* x;
  int64_t x_stride;
  const void *a, *b;
  const int32_t* places;
  int64_t tokens, in, out, rank, adapters;
  std::vector<Part> parts;
};

// Tokens of one adapter: order[begin, end).
struct Chunk {
  int64_t adapter, begin, end;
};

// Tokens that have an adapter, sorted by it.
struct Groups {
  std::vector<int32_t> order;
  std::vector<Chunk> chunks;

  explicit Groups(const Step& step) {
    const auto known = [&](int64_t t) {
      return step.places[t] >= 0 && step.places[t] < step.adapters;
    };
    std::vector<int64_t> ends(step.adapters + 1);
    for (int64_t t = 0; t < step.tokens; ++t) {
      if (known(t)) ++ends[step.places[t] + 1];
    }
    std::partial_sum(ends.begin(), ends.end(), ends.begin());
    order.resize(ends.back());
    for (int64_t p = 0; p < step.adapters; ++p) {
      for (int64_t begin = ends[p]; begin < ends[p + 1]; begin += kChunk) {
        chunks.push_back({p, begin, std::min(begin + kChunk, ends[p + 1])});
      }
    }
    for (int64_t t = 0; t < step.tokens; ++t) {
      if (known(t)) order[ends[step.places[t]]++] = int32_t(t);
    }
  }
};

// low[n][r] = a[r] x[n] for R rows of a and N tokens.
template <class T, int R, int N>
void shrink_tile(const T* const* x, const T* a, int64_t k, float* const* low) {
  using D = Dot<Operand<T>, T>;
  constexpr int64_t kStep = VL * D::pack;
  Vec sums[R][N];
  for (auto& row : sums) std::fill_n(row, N, vzero());
  int64_t i = 0;
  for (; i + kStep <= k; i += kStep) {
    typename D::B tokens[N];
    for (int n = 0; n < N; ++n) tokens[n] = D::load(x[n] + i);
    for (int r = 0; r < R; ++r) {
      const T* row = a + r * k + i;
      __builtin_prefetch(row + R * k, 0, kNear);  // of the next task
      const auto factors = D::load(row);
      for (int n = 0; n < N; ++n) sums[r][n] = D::multiply_add(tokens[n], factors, sums[r][n]);
    }
  }
  for (; i < k; i += VL) {
    const int lanes = int(std::min<int64_t>(VL, k - i));
    for (int r = 0; r < R; ++r) {
      const Vec factors = vload_n(a + r * k + i, lanes);
      for (int n = 0; n < N; ++n) {
        sums[r][n] = vfma(vload_n(x[n] + i, lanes), factors, sums[r][n]);
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int n = 0; n < N; ++n) low[n][r] = vsum(sums[r][n]);
  }
}

// y[n] += sum over r of low[n][r] b[r], columns [part.begin, part.end), for N tokens. Rows of b are
// often a power of two apart, where few share a set of the cache. So a few at a time are read, and
// `carried`, room for N rows of kColumns, keeps what they add up to.
template <class T, int N>
void expand_tile(const float* const* low, const T* b, const Part& part, int64_t out, T* const* y,
                 float* carried) {
  const int64_t whole = (part.end - part.begin) / (2 * VL) * (2 * VL);
  for (int64_t first = part.first_rank; first < part.end_rank; first += kRanks) {
    const int64_t end = std::min(first + kRanks, part.end_rank);
    // What is read next: more rows, or these of the next columns.
    const T* ahead = end < part.end_rank ? b + end * out : b + part.first_rank * out + kColumns;
    for (int64_t i = 0; i < whole; i += 2 * VL) {
      Vec sums[N][2];
      for (int n = 0; n < N; ++n) {
        const float* before = carried + n * kColumns + i;
        sums[n][0] = first == part.first_rank ? vzero() : vload(before);
        sums[n][1] = first == part.first_rank ? vzero() : vload(before + VL);
      }
      for (int64_t r = first; r < end; ++r) {
        const T* row = b + r * out + part.begin + i;
        __builtin_prefetch(ahead + (r - first) * out + part.begin + i, 0, kNear);
        const Vec left = vload(row), right = vload(row + VL);
        for (int n = 0; n < N; ++n) {
          const Vec by = vset(low[n][r]);
          sums[n][0] = vfma(by, left, sums[n][0]);
          sums[n][1] = vfma(by, right, sums[n][1]);
        }
      }
      for (int n = 0; n < N; ++n) {
        if (end < part.end_rank) {
          vstore_pair(carried + n * kColumns + i, sums[n][0], sums[n][1]);
        } else {
          T* to = y[n] + part.begin + i;
          vstore_pair(to, vload(to) + sums[n][0], vload(to + VL) + sums[n][1]);
        }
      }
    }
  }
  const int64_t rest = part.begin + whole;
  for_vectors(part.end - rest, [&](int64_t j, auto lanes) {
    for (int n = 0; n < N; ++n) {
      Vec sum = vzero();
      for (int64_t r = part.first_rank; r < part.end_rank; ++r) {
        sum = vfma(vset(low[n][r]), load(b + r * out + rest + j, lanes), sum);
      }
      store(y[n] + rest + j, load(y[n] + rest + j, lanes) + sum, lanes);
    }
  });
}

// Calls f with a constant of the value of n, 1 to kTokens.
template <class F>
void with_count(int64_t n, F&& f) {
  static_assert(kTokens == 4);
  switch (n) {
    case 1: return f(std::integral_constant<int, 1>{});
    case 2: return f(std::integral_constant<int, 2>{});
    case 3: return f(std::integral_constant<int, 3>{});
    default: return f(std::integral_constant<int, 4>{});
  }
}

template <class T>
class Run {
 public:
  explicit Run(const Step& step)
      : step_(step), groups_(step), low_(groups_.order.size() * step.rank) {}

  void operator()() {
    const int64_t blocks = (step_.rank + kRows - 1) / kRows, chunks = groups_.chunks.size();
    parallel_for(
        chunks * blocks,
        [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) shrink(groups_.chunks[i / blocks], i % blocks);
        },
        rows_holding(kMinElementsPerThread, kRows * step_.in));
    std::vector<Part> pieces;
    for (const Part& part : step_.parts) {
      for (int64_t at = part.begin; at < part.end; at += kColumns) {
        pieces.push_back({part.first_rank, part.end_rank, at, std::min(at + kColumns, part.end)});
      }
    }
    const int64_t count = pieces.size();
    parallel_for(
        chunks * count,
        [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) expand(groups_.chunks[i / count], pieces[i % count]);
        },
        rows_holding(kMinElementsPerThread, kColumns * step_.rank / step_.parts.size()));
  }

 private:
  void shrink(const Chunk& chunk, int64_t block) {
    const T* a = (const T*)step_.a + (chunk.adapter * step_.rank + block * kRows) * step_.in;
    const int64_t rows = std::min<int64_t>(kRows, step_.rank - block * kRows);
    for (int64_t at = chunk.begin; at < chunk.end; at += kTokens) {
      with_count(chunk.end - at, [&](auto number) {
        constexpr int N = number;
        const T* x[N];
        float* low[N];
        for (int n = 0; n < N; ++n) {
          x[n] = (const T*)step_.x + groups_.order[at + n] * step_.x_stride;
          low[n] = low_.data() + (at + n) * step_.rank + block * kRows;
        }
        if (rows == kRows) return shrink_tile<T, kRows, N>(x, a, step_.in, low);
        for (int64_t r = 0; r < rows; ++r) {
          shrink_tile<T, 1, N>(x, a + r * step_.in, step_.in, low);
          for (float*& to : low) ++to;
        }
      });
    }
  }

  void expand(const Chunk& chunk, const Part& piece) {
    const T* b = (const T*)step_.b + chunk.adapter * step_.rank * step_.out;
    auto* carried = (float*)thread_scratch(kTokens * kColumns * sizeof(float));
    for (int64_t at = chunk.begin; at < chunk.end; at += kTokens) {
      with_count(chunk.end - at, [&](auto number) {
        constexpr int N = number;
        T* y[N];
        const float* low[N];
        for (int n = 0; n < N; ++n) {
          y[n] = (T*)step_.y + groups_.order[at + n] * step_.y_stride;
          low[n] = low_.data() + (at + n) * step_.rank;
        }
        expand_tile<T, N>(low, b, piece, step_.out, y, carried);
      });
    }
  }

  const Step& step_;
  Groups groups_;
  std::vector<float> low_;  // [tokens with an adapter, rank], in the order of groups_
};

void lora(int dtype, uintptr_t y, int64_t y_stride, uintptr_t x, int64_t x_stride, uintptr_t a,
          uintptr_t b, uintptr_t places, int64_t tokens, int64_t in, int64_t out, int64_t rank,
          int64_t adapters, uintptr_t parts, int64_t num_parts) {
  Step step{(void*)y,       y_stride, (const void*)x, x_stride, (const void*)a, (const void*)b,
            (const int32_t*)places, tokens, in, out, rank, adapters, {}};
  int64_t column = 0;
  for (int64_t i = 0; i < num_parts; ++i) {
    const int64_t end = column + ((const int64_t*)parts)[i];
    step.parts.push_back({rank * i / num_parts, rank * (i + 1) / num_parts, column, end});
    column = end;
  }
  visit_float(dtype, [&](auto type) { Run<decltype(type)>{step}(); });
}

}  // namespace
}  // namespace hotshoe::lora

namespace hotshoe {

void bind_lora(nb::module_& m) {
  m.def("lora", recorded(&lora::lora), "dtype"_a, "y"_a, "y_stride"_a, "x"_a, "x_stride"_a, "a"_a,
        "b"_a, "places"_a, "tokens"_a, "in_features"_a, "out_features"_a, "rank"_a, "adapters"_a,
        "parts"_a, "num_parts"_a, nb::call_guard<nb::gil_scoped_release>(),
        "y[t] += b[p]^T (a[p] x[t]) where p = places[t] is one of 0 to adapters - 1.\n\n"
        "a [adapters, rank, in_features], b [adapters, rank, out_features] and places [tokens]\n"
        "int32 are addresses of contiguous memory; strides count elements between rows. parts is\n"
        "the address of int64 [num_parts], which add up to out_features: b is read in num_parts\n"
        "blocks along its diagonal, each of rank / num_parts rows. All floats have one dtype, sums\n"
        "are float32. A row's result depends neither on the number of threads nor on other rows.\n\n"
        "Raises:\n    ValueError: an unknown dtype.");
}

}  // namespace hotshoe
