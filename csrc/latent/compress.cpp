// Entries of a cache, each made of the rows of a group of tokens: sums of values, channel by
// channel, weighted by a softmax over the tokens; a norm, if there is one; a rotation.
//
// Source: DeepSeek-V4's report, section 2.3.

#include <nanobind/nanobind.h>

#include <limits>
#include <vector>

#include "common/exponential.h"
#include "common/parallel.h"
#include "common/rows.h"
#include "latent/turn.h"
#include "record/record.h"

namespace nb = nanobind;

namespace hotshoe::latent {
namespace {

constexpr int kStripVectors = 4;
constexpr int64_t kMinElements = 1 << 15;  // of all rows; below, waking a thread costs more

struct Pages {
  char* cache;
  int64_t block_bytes, row_bytes;
  const int32_t* table;
  int64_t table_stride;

  char* at(int64_t request, int64_t block, int64_t row) const {
    return cache + table[request * table_stride + block] * block_bytes + row * row_bytes;
  }
};

struct Compressing {
  Pages tokens, entries;
  const float* bias;     // [group, sets * size]
  const void* norm;      // [size] or null
  const float* cos_sin;  // [positions, rope]
  int64_t size, rope, group, sets, block_size;
  float eps;
};

struct Entry {
  int64_t request, last;  // token of its group
};

// Of one token of an entry's: the values, and the gates that weigh them.
template <class T>
struct Part {
  const T *values, *gates;
  const float* bias;

  template <class L>
  Vec gate(int64_t at, L lanes) const {
    return load(gates + at, lanes) + load(bias + at, lanes);
  }
};

template <class T>
void find(const Compressing& job, const Entry& entry, std::vector<Part<T>>& parts) {
  parts.clear();
  const int64_t reach = job.group * job.sets, channels = job.size * job.sets;
  for (int64_t j = 0; j < reach; ++j) {
    const int64_t at = entry.last + 1 - reach + j, own = j / job.group * job.size;
    if (at < 0) continue;
    const auto* row = (const T*)job.tokens.at(entry.request, at / job.block_size, at % job.block_size);
    parts.push_back({row + own, row + channels + own, job.bias + j % job.group * channels + own});
  }
}

// Some vectors of an entry's channels.
template <int W, class T, class L>
void average(const std::vector<Part<T>>& parts, int64_t at, L lanes, float* to) {
  Vec largest[W], sums[W], totals[W];
  for (int w = 0; w < W; ++w) {
    largest[w] = vset(std::numeric_limits<float>::lowest());
    sums[w] = totals[w] = vzero();
  }
  for (const Part<T>& part : parts) {
    for (int w = 0; w < W; ++w) largest[w] = vmax(part.gate(at + w * VL, lanes), largest[w]);
  }
  for (const Part<T>& part : parts) {
    for (int w = 0; w < W; ++w) {
      const Vec weight = vexp2((part.gate(at + w * VL, lanes) - largest[w]) * vset(kLog2E));
      sums[w] = vfma(weight, load(part.values + at + w * VL, lanes), sums[w]);
      totals[w] += weight;
    }
  }
  for (int w = 0; w < W; ++w) store(to + at + w * VL, sums[w] / totals[w], lanes);
}

template <class T, class S>
void make(const Compressing& job, const Entry& entry) {
  thread_local std::vector<Part<T>> parts;
  find(job, entry, parts);
  auto* made = (float*)thread_scratch(size_t(job.size) * sizeof(float));
  constexpr int64_t strip = kStripVectors * VL;
  int64_t i = 0;
  for (; i + strip <= job.size; i += strip) {
    average<kStripVectors>(parts, i, WholeVector{}, made);
  }
  for_vectors(job.size - i, [&](int64_t at, auto lanes) { average<1>(parts, i + at, lanes, made); });
  if (const auto* norm = (const T*)job.norm) {
    const Vec scale = vset(inverse_rms(made, job.size, job.eps));
    for_vectors(job.size, [&](int64_t at, auto lanes) {
      store(made + at, load(made + at, lanes) * scale * load(norm + at, lanes), lanes);
    });
  }
  const float* turn = job.cos_sin + (entry.last + 1 - job.group) * job.rope;
  turn_pairs(made + job.size - job.rope, turn, turn + job.rope / 2, job.rope / 2, 1.0f);
  const int64_t block = entry.last / job.block_size;
  auto* to = (S*)job.entries.at(entry.request, block, entry.last % job.block_size / job.group);
  convert_row((const float*)made, to, job.size);
}

void compress(uintptr_t tokens, int64_t token_block_bytes, int64_t token_bytes,
              uintptr_t token_table, int64_t token_table_stride, uintptr_t entries,
              int64_t entry_block_bytes, int64_t entry_bytes, uintptr_t entry_table,
              int64_t entry_table_stride, uintptr_t starts, uintptr_t lens, int64_t count,
              uintptr_t bias, uintptr_t norm, uintptr_t cos_sin, int64_t size, int64_t rope,
              int64_t group, int64_t sets, int64_t block_size, float eps, int dtype,
              int cache_dtype) {
  const Compressing job{
      {(char*)tokens, token_block_bytes, token_bytes, (const int32_t*)token_table,
       token_table_stride},
      {(char*)entries, entry_block_bytes, entry_bytes, (const int32_t*)entry_table,
       entry_table_stride},
      (const float*)bias,
      (const void*)norm,
      (const float*)cos_sin,
      size,
      rope,
      group,
      sets,
      block_size,
      eps};
  const auto *begin = (const int32_t*)starts, *length = (const int32_t*)lens;
  std::vector<Entry> made;
  for (int64_t r = 0; r < count; ++r) {
    const int64_t before = length[r] - (begin[r + 1] - begin[r]);
    for (int64_t e = before / group; e < length[r] / group; ++e) {
      made.push_back({r, e * group + group - 1});
    }
  }
  visit_float(dtype, [&](auto type) {
    visit_float(cache_dtype, [&](auto kept) {
      const auto one = [&](int64_t i) { make<decltype(type), decltype(kept)>(job, made[size_t(i)]); };
      const auto all = int64_t(made.size());
      if (all * group * sets * size >= kMinElements) return parallel_dynamic(all, one);
      for (int64_t i = 0; i < all; ++i) one(i);
    });
  });
}

}  // namespace
}  // namespace hotshoe::latent

namespace hotshoe {

void bind_compress(nb::module_& m) {
  m.def("compress", recorded(&latent::compress), nb::call_guard<nb::gil_scoped_release>(),
        "compress(tokens, token_block_bytes, token_bytes, token_table, token_table_stride, entries,\n"
        "    entry_block_bytes, entry_bytes, entry_table, entry_table_stride, starts, lens, count,\n"
        "    bias, norm, cos_sin, size, rope, group, sets, block_size, eps, dtype, cache_dtype)\n\n"
        "Make the entries of the groups whose last token is in the step of count requests.\n"
        "Addresses: tokens [blocks, block_size] rows of the dtype, `sets` times `size` values, then\n"
        "as many gates; entries [blocks] of one row for each group that ends in a block, `size`\n"
        "numbers of cache_dtype; a table [count, columns] of each, starts [count + 1] and lens\n"
        "[count] int32; bias [group, sets * size] float32; norm [size] of the dtype, 0 for none;\n"
        "cos_sin [positions, rope] float32, cosines then sines, by which pairs of neighbors of the\n"
        "last `rope` numbers are turned. With two sets the first is that of the group before.\n"
        "table strides count elements.\n\n"
        "Raises:\n    ValueError: an unknown dtype.");
}

}  // namespace hotshoe
