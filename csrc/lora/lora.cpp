// What low-rank adapters add to a product: y[t] += b[p]^T (a[p] x[t]), p the adapter of token t.
//
// Tokens of an adapter are gathered by their numbers, so that its factors are read once for up to
// kChunk of them. Rows that an adapter leaves zero are not read, nor is an adapter that has none.
// Sums are float and y is rounded once. A row's result does not depend on others.
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
  // Of a part, that an adapter uses: those behind them are zero.
  int64_t rows(int64_t adapter, int64_t part) const {
    const int64_t most = parts[part].end_rank - parts[part].first_rank;
    if (!ranks) return most;
    return std::clamp<int64_t>(ranks[adapter * ranks_stride + part], 0, most);
  }

  void* y;
  int64_t y_stride;
  const void* x;
  int64_t x_stride;
  const void *a, *b;
  const int32_t* places;
  int64_t tokens, in, out, rank, adapters;
  const int32_t* ranks;  // null: all rows are used
  int64_t ranks_stride;
  std::vector<Part> parts;
};

// Tokens of one adapter: order[begin, end).
struct Chunk {
  int64_t adapter, begin, end;
};

// Tokens that have an adapter with numbers, sorted by it.
struct Groups {
  std::vector<int32_t> order;
  std::vector<Chunk> chunks;

  explicit Groups(const Step& step) {
    std::vector<char> used(step.adapters);
    for (int64_t p = 0; p < step.adapters; ++p) {
      for (int64_t part = 0; part < int64_t(step.parts.size()); ++part) {
        used[p] |= step.rows(p, part) > 0;
      }
    }
    const auto known = [&](int64_t t) {
      return step.places[t] >= 0 && step.places[t] < step.adapters && used[step.places[t]];
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

// low[n][r] = a[r] x[n] for R rows of a and N tokens; as many rows at `ahead` are read next.
template <class T, int R, int N>
void shrink_tile(const T* const* x, const T* a, const T* ahead, int64_t k, float* const* low) {
  using D = Dot<Operand<T>, T>;
  constexpr int64_t kStep = VL * D::pack;
  Vec sums[R][N];
  for (auto& row : sums) std::fill_n(row, N, vzero());
  int64_t i = 0;
  for (; i + kStep <= k; i += kStep) {
    typename D::B tokens[N];
    for (int n = 0; n < N; ++n) tokens[n] = D::load(x[n] + i);
    for (int r = 0; r < R; ++r) {
      __builtin_prefetch(ahead + r * k + i, 0, kNear);
      const auto factors = D::load(a + r * k + i);
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
// `carried`, room for N rows of kColumns, keeps what they add up to. Rows at `following` are next.
template <class T, int N>
void expand_tile(const float* const* low, const T* b, const Part& part, int64_t out, T* const* y,
                 float* carried, const T* following) {
  const int64_t whole = (part.end - part.begin) / (2 * VL) * (2 * VL);
  for (int64_t first = part.first_rank; first < part.end_rank; first += kRanks) {
    const int64_t end = std::min(first + kRanks, part.end_rank);
    const T* ahead = end < part.end_rank ? b + end * out + part.begin : following;
    for (int64_t i = 0; i < whole; i += 2 * VL) {
      Vec sums[N][2];
      for (int n = 0; n < N; ++n) {
        const float* before = carried + n * kColumns + i;
        sums[n][0] = first == part.first_rank ? vzero() : vload(before);
        sums[n][1] = first == part.first_rank ? vzero() : vload(before + VL);
      }
      for (int64_t r = first; r < end; ++r) {
        const T* row = b + r * out + part.begin + i;
        __builtin_prefetch(ahead + (r - first) * out + i, 0, kNear);
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
      : step_(step), groups_(step), low_(groups_.order.size() * step.rank) {
    for (const Chunk& chunk : groups_.chunks) {
      for (int64_t i = 0; i < int64_t(step.parts.size()); ++i) {
        const Part& part = step.parts[i];
        const int64_t end = part.first_rank + step.rows(chunk.adapter, i);
        for (int64_t row = part.first_rank; row < end; row += kRows) {
          shrinks_.push_back({chunk, {row, std::min(row + kRows, end), 0, step.in}});
        }
        if (end == part.first_rank) continue;
        for (int64_t at = part.begin; at < part.end; at += kColumns) {
          expands_.push_back(
              {chunk, {part.first_rank, end, at, std::min(at + kColumns, part.end)}});
        }
      }
    }
  }

  void operator()() {
    for_tasks(shrinks_, kRows * step_.in, [&](auto&&... task) { shrink(task...); });
    for_tasks(expands_, kColumns * step_.rank / step_.parts.size(),
              [&](auto&&... task) { expand(task...); });
  }

 private:
  // Tokens of one adapter by a part of its a, whose rows have `in` columns, or of its b.
  struct Task {
    Chunk chunk;
    Part part;
  };

  // Calls f with each task and the one that the thread does next, at the end the same.
  template <class F>
  void for_tasks(const std::vector<Task>& tasks, int64_t elements, F&& f) {
    parallel_for(
        tasks.size(),
        [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) f(tasks[i], tasks[std::min(i + 1, end - 1)]);
        },
        rows_holding(kMinElementsPerThread, elements));
  }

  const T* rows_of(const void* factors, int64_t columns, const Task& task) const {
    const int64_t row = task.chunk.adapter * step_.rank + task.part.first_rank;
    return (const T*)factors + row * columns + task.part.begin;
  }

  void shrink(const Task& task, const Task& next) {
    const T *a = rows_of(step_.a, step_.in, task), *ahead = rows_of(step_.a, step_.in, next);
    const auto& [chunk, part] = task;
    const int64_t rows = part.end_rank - part.first_rank;
    for (int64_t at = chunk.begin; at < chunk.end; at += kTokens) {
      with_count(chunk.end - at, [&](auto number) {
        constexpr int N = number;
        const T* x[N];
        float* low[N];
        for (int n = 0; n < N; ++n) {
          x[n] = (const T*)step_.x + groups_.order[at + n] * step_.x_stride;
          low[n] = low_.data() + (at + n) * step_.rank + part.first_rank;
        }
        if (rows == kRows) return shrink_tile<T, kRows, N>(x, a, ahead, step_.in, low);
        for (int64_t r = 0; r < rows; ++r) {
          shrink_tile<T, 1, N>(x, a + r * step_.in, ahead, step_.in, low);
          for (float*& to : low) ++to;
        }
      });
    }
  }

  void expand(const Task& task, const Task& next) {
    const T* b = (const T*)step_.b + task.chunk.adapter * step_.rank * step_.out;
    const T* following = rows_of(step_.b, step_.out, next);
    auto* carried = (float*)thread_scratch(kTokens * kColumns * sizeof(float));
    const Chunk& chunk = task.chunk;
    for (int64_t at = chunk.begin; at < chunk.end; at += kTokens) {
      with_count(chunk.end - at, [&](auto number) {
        constexpr int N = number;
        T* y[N];
        const float* low[N];
        for (int n = 0; n < N; ++n) {
          y[n] = (T*)step_.y + groups_.order[at + n] * step_.y_stride;
          low[n] = low_.data() + (at + n) * step_.rank;
        }
        expand_tile<T, N>(low, b, task.part, step_.out, y, carried, following);
      });
    }
  }

  const Step& step_;
  Groups groups_;
  std::vector<Task> shrinks_, expands_;
  std::vector<float> low_;  // [tokens with an adapter, rank], in the order of groups_
};

void lora(int dtype, uintptr_t y, int64_t y_stride, uintptr_t x, int64_t x_stride, uintptr_t a,
          uintptr_t b, uintptr_t places, int64_t tokens, int64_t in, int64_t out, int64_t rank,
          int64_t adapters, uintptr_t parts, int64_t num_parts, uintptr_t ranks,
          int64_t ranks_stride) {
  Step step{(void*)y,
            y_stride,
            (const void*)x,
            x_stride,
            (const void*)a,
            (const void*)b,
            (const int32_t*)places,
            tokens,
            in,
            out,
            rank,
            adapters,
            (const int32_t*)ranks,
            ranks_stride,
            {}};
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
        "parts"_a, "num_parts"_a, "ranks"_a = 0, "ranks_stride"_a = 0,
        nb::call_guard<nb::gil_scoped_release>(),
        "y[t] += b[p]^T (a[p] x[t]) where p = places[t] is one of 0 to adapters - 1.\n\n"
        "a [adapters, rank, in_features], b [adapters, rank, out_features] and places [tokens]\n"
        "int32 are addresses of contiguous memory; strides count elements between rows. parts is\n"
        "the address of int64 [num_parts], which add up to out_features: b is read in num_parts\n"
        "blocks along its diagonal, each of rank / num_parts rows. ranks is the address of int32\n"
        "[adapters, num_parts], ranks_stride apart: how many rows of each block an adapter uses,\n"
        "which are the first ones; others are not read. With 0 all are. All floats have one dtype,\n"
        "sums are float32. A row's result depends neither on the number of threads nor on other\n"
        "rows.\n\n"
        "Raises:\n    ValueError: an unknown dtype.");
}

}  // namespace hotshoe
