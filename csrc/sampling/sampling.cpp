// Choice of the next token: temperature, top-k, top-p, min-p, then the inverse CDF.
//
// No row is sorted. Each filter keeps what lies above a threshold, so all of them become one
// lower bound on the logits; maxima of short blocks, found in the first pass, let the later
// passes skip most of the row. Source: Holtzman et al. 2019, arXiv:1904.09751 (top-p).

#include <nanobind/nanobind.h>

#include <cmath>
#include <limits>

#include "common/parallel.h"
#include "common/rows.h"
#include "common/words.h"
#include "sampling/threshold.h"

namespace nb = nanobind;

namespace hotshoe {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int64_t kBlock = 128;  // logits that share a maximum
constexpr int64_t kNoToken = -1;

struct SampleArgs {
  int64_t* tokens;
  const void* logits;
  const float* temperature;
  const int32_t* top_k;
  const float *top_p, *min_p;
  const double* uniform;
  int64_t rows, vocab_size, stride;
};

// One row's logits with what is known of them, in the thread's scratch memory.
struct Row {
  const float* x;
  int64_t size, blocks;
  float* maxima;      // [blocks]
  double* sums;       // [blocks]
  uint32_t* keys;     // [size]
  float* weights;     // [size], used behind `converted`
  float max = -kInfinity;
  float inverse_temperature = 0;

  int64_t block_size(int64_t block) const { return std::min(kBlock, size - block * kBlock); }

  // e^((x - max) / temperature), at most 1.
  template <class Lanes>
  Vec weight(const float* at, Lanes lanes) const {
    return vexp((load(at, lanes) - vset(max)) * vset(inverse_temperature));
  }
};

inline IntLanes magnitude(const float* p, WholeVector) { return load_words(p) & 0x7fffffff; }
inline IntLanes magnitude(const float* p, FirstLanes lanes) {
  return load_words_n(p, lanes.count) & 0x7fffffff;
}

// Finds the maxima. False when the row holds NaN or its maximum is not finite.
bool scan(Row& row) {
  IntLanes largest{};
  for (int64_t block = 0; block < row.blocks; ++block) {
    const float* x = row.x + block * kBlock;
    Vec max = vset(-kInfinity);
    for_vectors(row.block_size(block), [&](int64_t i, auto lanes) {
      const IntLanes bits = magnitude(x + i, lanes);
      largest = bits > largest ? bits : largest;
      if constexpr (std::is_same_v<decltype(lanes), WholeVector>) {
        max = vmax(max, load(x + i, lanes));
      } else {  // lanes without a logit are zero, which could be the maximum
        for (int lane = 0; lane < lanes.count; ++lane) max = vmax(max, vset(x[i + lane]));
      }
    });
    row.maxima[block] = vmax_lane(max);
    row.max = std::max(row.max, row.maxima[block]);
  }
  for (int lane = 0; lane < VL; ++lane) {
    if (largest[lane] > 0x7f800000) return false;
  }
  return std::isfinite(row.max);
}

int64_t first_maximum(const Row& row) {
  int64_t block = 0;
  while (row.maxima[block] != row.max) ++block;
  int64_t i = block * kBlock;
  while (row.x[i] != row.max) ++i;
  return i;
}

// Collects the keys of all logits that are not below `bound`.
int64_t collect(const Row& row, float bound) {
  uint32_t* keys = row.keys;
  for (int64_t block = 0; block < row.blocks; ++block) {
    if (row.maxima[block] < bound) continue;
    const float* x = row.x + block * kBlock;
    for (int64_t i = 0, n = row.block_size(block); i < n; ++i) {
      *keys = ordered_bits(x[i]);
      keys += x[i] >= bound;  // no branch: hard to predict
    }
  }
  return keys - row.keys;
}

// The k-th largest logit, 0 < k < size. The k-th largest of the blocks' maxima bounds it from
// below, and few logits reach that.
float kth_largest(const Row& row, int64_t k) {
  float bound = std::numeric_limits<float>::lowest();
  if (k <= row.blocks) {
    for (int64_t i = 0; i < row.blocks; ++i) row.keys[i] = ordered_bits(row.maxima[i]);
    bound = from_ordered_bits(
        weighted_threshold(row.keys, UnitWeights{}, row.blocks, double(k)));
  }
  const int64_t count = collect(row, bound);
  if (count <= k) return bound;
  return from_ordered_bits(weighted_threshold(row.keys, UnitWeights{}, count, double(k)));
}

// Weights of all logits not below `bound`, summed per block and in all.
double sum_weights(const Row& row, float bound) {
  double total = 0;
  for (int64_t block = 0; block < row.blocks; ++block) {
    row.sums[block] = 0;
    if (row.maxima[block] < bound) continue;
    const float* x = row.x + block * kBlock;
    Vec sum = vzero();
    for_vectors(row.block_size(block), [&](int64_t i, auto lanes) {
      const Vec weight = where_not_below(load(x + i, lanes), vset(bound), row.weight(x + i, lanes));
      if constexpr (std::is_same_v<decltype(lanes), WholeVector>) {
        sum += weight;
      } else {
        float parts[VL];
        vstore(parts, weight);
        sum += vload_n(parts, lanes.count);
      }
    });
    total += row.sums[block] = vsum(sum);
  }
  return total;
}

// The lowest logit of the smallest set that holds `share` of the weight not below `bound`.
float nucleus(const Row& row, float bound, double share) {
  const double total = sum_weights(row, bound);
  // All weights below (1 - share) * total / size together cannot hold the rest.
  const double negligible = (1 - share) * total / double(row.size);
  const double cut = row.max + std::log(negligible) / row.inverse_temperature;
  const float lowest = std::numeric_limits<float>::lowest();
  const float rounding = 1e-3f * (1 + std::abs(row.max));
  const int64_t count = collect(row, std::max({bound, lowest, float(cut) - rounding}));
  uint32_t* keys = row.keys;
  float* weights = row.weights;
  for (int64_t i = 0; i < count; ++i) weights[i] = from_ordered_bits(keys[i]);
  for_vectors(count, [&](int64_t i, auto lanes) {
    store(weights + i, row.weight(weights + i, lanes), lanes);
  });
  return from_ordered_bits(
      weighted_threshold(keys, FloatWeights{weights}, count, share * total));
}

// The first index whose cumulative weight exceeds u of the total, over logits not below `bound`.
int64_t draw(const Row& row, float bound, double u) {
  const double target = u * sum_weights(row, bound);
  double below = 0, next = 0;
  int64_t last = 0;
  for (int64_t block = 0; block < row.blocks && next <= target; ++block) {
    if (row.sums[block] == 0) continue;
    last = block;
    below = next;
    next += row.sums[block];
  }
  const float* x = row.x + last * kBlock;
  float weights[kBlock];
  for_vectors(row.block_size(last), [&](int64_t i, auto lanes) {
    store(weights + i, row.weight(x + i, lanes), lanes);
  });
  // Sums in another order differ in rounding: the last kept token of the block stands in.
  int64_t token = 0;
  for (int64_t i = 0; i < row.block_size(last); ++i) {
    if (!(x[i] >= bound) || weights[i] == 0) continue;
    token = i;
    below += weights[i];
    if (below > target) break;
  }
  return last * kBlock + token;
}

int64_t choose(const SampleArgs& args, Row& row, int64_t index) {
  if (!scan(row)) return kNoToken;
  row.inverse_temperature = 1.0f / args.temperature[index];
  if (!std::isfinite(row.inverse_temperature)) return first_maximum(row);
  float bound = -kInfinity;
  if (const int64_t k = args.top_k[index]; k > 0 && k < row.size) bound = kth_largest(row, k);
  if (const float p = args.top_p[index]; p < 1) bound = nucleus(row, bound, p);
  if (const float p = args.min_p[index]; p > 0) {
    bound = std::max(bound, float(row.max + std::log(double(p)) / row.inverse_temperature));
  }
  return draw(row, bound, args.uniform[index]);
}

template <class T>
int64_t sample_row(const SampleArgs& args, int64_t index) {
  const int64_t n = args.vocab_size, blocks = (n + kBlock - 1) / kBlock;
  const bool convert = !std::is_same_v<T, float>;
  char* memory = static_cast<char*>(
      thread_scratch(size_t(blocks) * 16 + size_t(n) * 8 + (convert ? size_t(n) * 4 : 0)));
  Row row;
  row.size = n;
  row.blocks = blocks;
  row.sums = reinterpret_cast<double*>(memory);
  row.maxima = reinterpret_cast<float*>(memory + blocks * 8);
  row.keys = reinterpret_cast<uint32_t*>(memory + blocks * 16);
  row.weights = reinterpret_cast<float*>(row.keys + n);
  const T* logits = static_cast<const T*>(args.logits) + index * args.stride;
  if constexpr (std::is_same_v<T, float>) {
    row.x = logits;
  } else {
    float* converted = row.weights + n;
    convert_row(logits, converted, n);
    row.x = converted;
  }
  return choose(args, row, index);
}

void sample(const SampleArgs& args, int dtype) {
  visit_float(dtype, [&](auto tag) {
    parallel_dynamic(args.rows,
                     [&](int64_t i) { args.tokens[i] = sample_row<decltype(tag)>(args, i); });
  });
}

}  // namespace

void bind_sampling(nb::module_& m) {
  m.def(
      "sample",
      [](uintptr_t tokens, uintptr_t logits, uintptr_t temperature, uintptr_t top_k,
         uintptr_t top_p, uintptr_t min_p, uintptr_t uniform, int64_t rows, int64_t vocab_size,
         int64_t stride, int dtype) {
        sample({reinterpret_cast<int64_t*>(tokens), reinterpret_cast<const void*>(logits),
                reinterpret_cast<const float*>(temperature),
                reinterpret_cast<const int32_t*>(top_k), reinterpret_cast<const float*>(top_p),
                reinterpret_cast<const float*>(min_p), reinterpret_cast<const double*>(uniform),
                rows, vocab_size, stride},
               dtype);
      },
      nb::call_guard<nb::gil_scoped_release>(),
      "sample(tokens, logits, temperature, top_k, top_p, min_p, uniform, rows, vocab_size,\n"
      "    stride, dtype)\n\n"
      "Choose one token per row of logits [rows, vocab_size] with a row stride.\n\n"
      "Addresses: tokens [rows] int64; temperature [rows] float32, 0 takes the maximum with the\n"
      "lowest index; top_k [rows] int32, 0 keeps all, ties with the k-th are kept; top_p [rows]\n"
      "float32, 1 keeps all, else the smallest set of the largest probabilities, renormalised\n"
      "after top-k, that holds it, ties at its boundary included; min_p [rows] float32 relative\n"
      "to the largest probability, 0 is off; uniform [rows] float64 in [0, 1): the first index\n"
      "whose cumulative probability exceeds it is taken. A row with NaN or without a finite\n"
      "maximum yields -1.");
}

}  // namespace hotshoe
