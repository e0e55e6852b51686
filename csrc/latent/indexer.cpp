// The choice of tokens that sparse attention reads: scores of all earlier tokens, then the largest.

#include <nanobind/nanobind.h>

#include <functional>
#include <numeric>
#include <vector>

#include "common/parallel.h"
#include "common/rows.h"
#include "record/record.h"
#include "latent/product.h"
#include "latent/rows.h"

namespace nb = nanobind;

namespace hotshoe::latent {
namespace {

constexpr int64_t kKeys = 512;                // of a unit, at most
constexpr int64_t kQueries = 8;               // likewise; they share the keys' transposition
constexpr int64_t kMostScores = int64_t(1) << 22;  // held at once, at least one query's

struct Query {
  int64_t token, position;
  const int32_t* blocks;
  float* scores;  // [position + 1]
};

struct Unit {
  int64_t first, count;  // of the queries
  int64_t key_begin, key_end;
};

struct Indexing {
  int32_t* out;
  const void* q;
  const float* weights;
  PagedRows keys;
  int64_t heads, top_k;
};

// Scores some queries of one request against some keys.
template <class T>
void score(const Indexing& job, const Query* queries, const Unit& unit) {
  const int64_t dim = job.keys.width(), size = job.heads * dim;
  auto* turned = (float*)thread_scratch(
      size_t((dim + job.heads) * kStrip + unit.count * size + dim) * sizeof(float));
  float *products = turned + dim * kStrip, *q = products + job.heads * kStrip;
  float* row = q + unit.count * size;
  for (int64_t i = 0; i < unit.count; ++i) {
    convert_row((const T*)job.q + queries[unit.first + i].token * size, q + i * size, size);
  }
  const int32_t* blocks = queries[unit.first].blocks;
  for (int64_t key = unit.key_begin; key < unit.key_end; key += kStrip) {
    const int64_t n = std::min(kStrip, unit.key_end - key);
    if (n < kStrip) std::fill_n(turned, dim * kStrip, 0.0f);
    for (int64_t j = 0; j < n; ++j) {
      job.keys.load(blocks, key + j, row);
      for (int64_t d = 0; d < dim; ++d) turned[d * kStrip + j] = row[d];
    }
    for (int64_t i = 0; i < unit.count; ++i) {
      const Query& query = queries[unit.first + i];
      const int64_t seen = std::min(n, query.position + 1 - key);
      if (seen <= 0) continue;
      multiply({q + i * size, dim, 1}, job.heads, turned, kStrip, kStrip, dim, products, kStrip,
               false);
      const float* weights = job.weights + query.token * job.heads;
      Vec sums[2] = {vzero(), vzero()};
      for (int64_t h = 0; h < job.heads; ++h) {
        const Vec weight = vset(weights[h]);
        for (int part = 0; part < 2; ++part) {
          const Vec positive = vmax(vzero(), vload(products + h * kStrip + part * VL));
          sums[part] = vfma(weight, positive, sums[part]);
        }
      }
      for (int part = 0; part < 2; ++part) {
        const int64_t left = std::clamp<int64_t>(seen - part * VL, 0, VL);
        vstore_n(query.scores + key + part * VL, sums[part], int(left));
      }
    }
  }
}

// Larger for larger numbers; 0 for NaN.
uint32_t ordered(float x) {
  if (x != x) return 0;
  const uint32_t bits = float_bits(x);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

void choose(const Query& query, int64_t top_k, int32_t* out) {
  const int64_t count = query.position + 1;
  if (count <= top_k) {
    std::iota(out, out + count, 0);
    std::fill(out + count, out + top_k, -1);
    return;
  }
  thread_local std::vector<uint64_t> ranked;
  ranked.resize(size_t(count));
  for (int64_t i = 0; i < count; ++i) {
    ranked[size_t(i)] = uint64_t(ordered(query.scores[i])) << 32 | uint64_t(i);
  }
  std::nth_element(ranked.begin(), ranked.begin() + top_k, ranked.end(), std::greater<>());
  for (int64_t i = 0; i < top_k; ++i) out[i] = int32_t(ranked[size_t(i)] & 0xffffffffu);
}

// Cuts queries, of one request each stretch of them, and their keys into units.
std::vector<Unit> units_of(const std::vector<Query>& queries) {
  std::vector<Unit> units;
  for (int64_t first = 0, count = 0, all = int64_t(queries.size()); first < all; first += count) {
    count = 1;
    while (count < kQueries && first + count < all &&
           queries[first + count].blocks == queries[first].blocks) {
      ++count;
    }
    const int64_t keys = queries[first + count - 1].position + 1;
    for (int64_t key = 0; key < keys; key += kKeys) {
      units.push_back({first, count, key, std::min(keys, key + kKeys)});
    }
  }
  return units;
}

template <class T>
void run(const Indexing& job, std::vector<Query>& queries, std::vector<float>& scores) {
  int64_t at = 0;
  for (Query& query : queries) {
    if (query.position + 1 <= job.top_k) continue;
    query.scores = scores.data() + at;
    at += query.position + 1;
  }
  std::vector<Query> scored;
  for (const Query& query : queries) {
    if (query.scores) scored.push_back(query);
  }
  const std::vector<Unit> units = units_of(scored);
  parallel_dynamic(int64_t(units.size()),
                   [&](int64_t i) { score<T>(job, scored.data(), units[size_t(i)]); });
  parallel_dynamic(int64_t(queries.size()), [&](int64_t i) {
    const Query& query = queries[size_t(i)];
    choose(query, job.top_k, job.out + query.token * job.top_k);
  });
}

void index_tokens(uintptr_t out, uintptr_t q, uintptr_t weights, uintptr_t cache,
                  int64_t block_bytes, int64_t row_bytes, uintptr_t table, int64_t table_stride,
                  uintptr_t starts, uintptr_t lens, int64_t count, int64_t heads, int64_t dim,
                  int64_t block_size, int64_t top_k, int dtype, int cache_dtype) {
  const Indexing job{(int32_t*)out,
                     (const void*)q,
                     (const float*)weights,
                     {(const void*)cache, block_bytes, row_bytes, block_size, dim, 0,
                      row_reader(dtype, cache_dtype)},
                     heads,
                     top_k};
  const auto *begin = (const int32_t*)starts, *length = (const int32_t*)lens;
  std::vector<Query> queries;
  std::vector<float> scores;
  int64_t held = 0;
  const auto flush = [&] {
    if (scores.size() < size_t(held)) scores.resize(size_t(held));
    visit_float(dtype, [&](auto type) { run<decltype(type)>(job, queries, scores); });
    queries.clear();
    held = 0;
  };
  for (int64_t r = 0; r < count; ++r) {
    const auto* blocks = (const int32_t*)table + r * table_stride;
    for (int64_t token = begin[r]; token < begin[r + 1]; ++token) {
      const int64_t position = length[r] - begin[r + 1] + token;
      const int64_t needed = position + 1 > top_k ? position + 1 : 0;
      if (held > 0 && held + needed > kMostScores) flush();
      queries.push_back({token, position, blocks, nullptr});
      held += needed;
    }
  }
  if (!queries.empty()) flush();
}

}  // namespace
}  // namespace hotshoe::latent

namespace hotshoe {

void bind_indexer(nb::module_& m) {
  m.def("index_tokens", recorded(&latent::index_tokens), nb::call_guard<nb::gil_scoped_release>(),
        "index_tokens(out, q, weights, cache, block_bytes, row_bytes, table, table_stride,\n"
        "    starts, lens, count, heads, dim, block_size, top_k, dtype, cache_dtype)\n\n"
        "Choose the top_k positions of largest scores for every token of count requests; all, and\n"
        "-1 behind them, where there are no more. Addresses: out [tokens, top_k] int32, q [tokens,\n"
        "heads, dim] of the dtype, weights [tokens, heads] float32, cache [blocks, block_size]\n"
        "rows of cache_dtype as latent_attention has them, table [count, columns], starts\n"
        "[count + 1] and lens [count] int32. table_stride counts elements.\n\n"
        "Raises:\n    ValueError: an unknown dtype.");
}

}  // namespace hotshoe
