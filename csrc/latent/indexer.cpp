// The choice of what sparse attention reads: scores of all earlier tokens, or of blocks of them, then
// the largest. Tokens are scored by all heads together, blocks by each head for itself.

#include <nanobind/nanobind.h>

#include <functional>
#include <limits>
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

constexpr int64_t kKeys = 512;                // of a unit, or as many as whole blocks have
constexpr int64_t kQueries = 8;               // likewise; they share the keys' transposition
constexpr int64_t kUnitRows = 128;            // of q, which few heads take more queries for
constexpr int64_t kProductSize = 64;          // rows of q that are multiplied together
constexpr int64_t kMostScores = int64_t(1) << 22;  // held at once, at least one query's

struct Query {
  int64_t token, position;
  const int32_t* blocks;
  float* scores;  // [lists, choices], null where everything is chosen
};

struct Unit {
  int64_t first, count;  // of the queries
  int64_t key_begin, key_end;
};

struct Indexing {
  int32_t* out;
  const void* q;
  const float* weights;  // of heads; null where each chooses for itself
  PagedRows keys;
  int64_t heads, top_k;
  int64_t group, local;  // tokens of a choice, and the last choices, which are made whatever they score

  int64_t lists() const { return weights ? 1 : heads; }
  int64_t choices(int64_t position) const { return position / group + 1; }
  int64_t scores(int64_t position) const {
    return choices(position) > top_k ? lists() * choices(position) : 0;
  }
};

// Scores keys by the sum of what heads find.
void add_heads(const Indexing& job, const Query& query, int64_t key, int64_t seen,
               const float* products) {
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

float largest_of(const float* x, int64_t n) {
  Vec largest = vset(-std::numeric_limits<float>::infinity());
  for_vectors(n / VL * VL, [&](int64_t i, auto lanes) { largest = vmax(load(x + i, lanes), largest); });
  float found = vmax_lane(largest);
  for (int64_t i = n / VL * VL; i < n; ++i) found = std::max(found, x[i]);
  return found;
}

// Scores blocks of keys by the largest of each head.
void take_largest(const Indexing& job, const Query& query, int64_t key, int64_t seen,
                  const float* products) {
  for (int64_t h = 0; h < job.heads; ++h) {
    float* to = query.scores + h * job.choices(query.position);
    for (int64_t j = 0; j < seen;) {
      const int64_t block = (key + j) / job.group;
      const int64_t n = std::min(seen, (block + 1) * job.group - key) - j;
      const float found = largest_of(products + h * kStrip + j, n);
      to[block] = (key + j) % job.group == 0 ? found : std::max(to[block], found);
      j += n;
    }
  }
}

// Scores some queries of one request against some keys.
template <class T>
void score(const Indexing& job, const Query* queries, const Unit& unit) {
  const int64_t dim = job.keys.width(), size = job.heads * dim;
  const int64_t together = std::clamp<int64_t>(kProductSize / job.heads, 1, unit.count);
  const int64_t rows = together * job.heads;
  auto* turned = (float*)thread_scratch(
      size_t((dim + rows) * kStrip + unit.count * size + dim) * sizeof(float));
  float *products = turned + dim * kStrip, *q = products + rows * kStrip;
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
    for (int64_t first = 0; first < unit.count; first += together) {
      const int64_t end = std::min(unit.count, first + together);
      if (queries[unit.first + end - 1].position < key) continue;
      multiply({q + first * size, dim, 1}, (end - first) * job.heads, turned, kStrip, kStrip, dim,
               products, kStrip, false);
      for (int64_t i = first; i < end; ++i) {
        const Query& query = queries[unit.first + i];
        const int64_t seen = std::min(n, query.position + 1 - key);
        const float* own = products + (i - first) * job.heads * kStrip;
        if (seen > 0) (job.weights ? add_heads : take_largest)(job, query, key, seen, own);
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

// Chooses among a query's choices, in one of its lists.
void choose(const Indexing& job, const Query& query, int64_t list) {
  const int64_t count = job.choices(query.position), top_k = job.top_k;
  int32_t* out = job.out + (query.token * job.lists() + list) * top_k;
  if (count <= top_k) {
    std::iota(out, out + count, 0);
    std::fill(out + count, out + top_k, -1);
    return;
  }
  float* scores = query.scores + list * count;
  std::fill(scores + count - job.local, scores + count, std::numeric_limits<float>::infinity());
  thread_local std::vector<uint64_t> ranked;
  ranked.resize(size_t(count));
  for (int64_t i = 0; i < count; ++i) {
    ranked[size_t(i)] = uint64_t(ordered(scores[i])) << 32 | uint64_t(i);
  }
  std::nth_element(ranked.begin(), ranked.begin() + top_k, ranked.end(), std::greater<>());
  for (int64_t i = 0; i < top_k; ++i) out[i] = int32_t(ranked[size_t(i)] & 0xffffffffu);
}

// Cuts queries, of one request each stretch of them, and their keys into units.
std::vector<Unit> units_of(const Indexing& job, const std::vector<Query>& queries) {
  std::vector<Unit> units;
  const int64_t step = round_up(kKeys, job.group);
  const int64_t most = std::max(kQueries, kUnitRows / job.heads);
  for (int64_t first = 0, count = 0, all = int64_t(queries.size()); first < all; first += count) {
    count = 1;
    while (count < most && first + count < all &&
           queries[first + count].blocks == queries[first].blocks) {
      ++count;
    }
    const int64_t keys = queries[first + count - 1].position + 1;
    for (int64_t key = 0; key < keys; key += step) {
      units.push_back({first, count, key, std::min(keys, key + step)});
    }
  }
  return units;
}

template <class T>
void run(const Indexing& job, std::vector<Query>& queries, std::vector<float>& scores) {
  int64_t at = 0;
  for (Query& query : queries) {
    const int64_t size = job.scores(query.position);
    if (size == 0) continue;
    query.scores = scores.data() + at;
    at += size;
  }
  std::vector<Query> scored;
  for (const Query& query : queries) {
    if (query.scores) scored.push_back(query);
  }
  const std::vector<Unit> units = units_of(job, scored);
  parallel_dynamic(int64_t(units.size()),
                   [&](int64_t i) { score<T>(job, scored.data(), units[size_t(i)]); });
  const int64_t lists = job.lists();
  parallel_dynamic(int64_t(queries.size()) * lists, [&](int64_t i) {
    choose(job, queries[size_t(i / lists)], i % lists);
  });
}

void index_tokens(uintptr_t out, uintptr_t q, uintptr_t weights, uintptr_t cache,
                  int64_t block_bytes, int64_t row_bytes, uintptr_t table, int64_t table_stride,
                  uintptr_t starts, uintptr_t lens, int64_t count, int64_t heads, int64_t dim,
                  int64_t block_size, int64_t top_k, int64_t group, int64_t local, int dtype,
                  int cache_dtype) {
  const Indexing job{(int32_t*)out,
                     (const void*)q,
                     (const float*)weights,
                     {(const void*)cache, block_bytes, row_bytes, block_size, dim, 0,
                      row_reader(dtype, cache_dtype)},
                     heads,
                     top_k,
                     group,
                     local};
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
      const int64_t needed = job.scores(position);
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
        "    starts, lens, count, heads, dim, block_size, top_k, group, local, dtype,\n"
        "    cache_dtype)\n\n"
        "Choose the top_k positions of largest scores for every token of count requests; all, and\n"
        "-1 behind them, where there are no more. Addresses: out [tokens, top_k] int32, q [tokens,\n"
        "heads, dim] of the dtype, weights [tokens, heads] float32, cache [blocks, block_size]\n"
        "rows of cache_dtype as latent_attention has them, table [count, columns], starts\n"
        "[count + 1] and lens [count] int32. table_stride counts elements. Without weights, 0,\n"
        "each head chooses blocks of `group` tokens by their largest product, the `local` last ones\n"
        "among them, and out is [tokens, heads, top_k]; with weights group is 1 and local 0.\n\n"
        "Raises:\n    ValueError: an unknown dtype.");
}

}  // namespace hotshoe
