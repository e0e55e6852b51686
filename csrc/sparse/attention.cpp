// Latent attention of each query over the rows that it has chosen: gathered, turned around, and
// multiplied in tiles. All heads read the same rows.

#include <nanobind/nanobind.h>

#include <cmath>
#include <limits>

#include "common/parallel.h"
#include "common/rows.h"
#include "record/record.h"
#include "sparse/product.h"

namespace nb = nanobind;

namespace hotshoe::sparse {
namespace {

constexpr int64_t kTile = 64;   // rows
constexpr int64_t kHeads = 32;  // of a task
static_assert(kTile % kStrip == 0);

struct Attending {
  void* out;
  const void* q;
  PagedRows rows;
  const int32_t *chosen, *table, *starts;
  int64_t count, table_stride, heads, latent, top_k;
  float scale;

  // The blocks of the request that a token belongs to.
  const int32_t* blocks_of(int64_t token) const {
    const int32_t* next = std::upper_bound(starts + 1, starts + count, int32_t(token));
    return table + (next - starts - 1) * table_stride;
  }
};

// Some heads of one token.
template <class T, class C>
class Task {
 public:
  Task(const Attending& job, int64_t token, int64_t head)
      : job_(job),
        token_(token),
        head_(head),
        heads_(std::min(kHeads, job.heads - head)),
        width_(job.rows.width),
        room_(round_up(width_, kStrip)),
        latent_room_(round_up(job.latent, kStrip)) {
    q_ = (float*)thread_scratch(sizeof(float) * size_t(kHeads * (width_ + latent_room_ + kTile) +
                                                       2 * kTile * room_ + 2 * kHeads));
    sums_ = q_ + kHeads * width_;
    scores_ = sums_ + kHeads * latent_room_;
    rows_ = scores_ + kHeads * kTile;
    turned_ = rows_ + kTile * room_;
    largest_ = turned_ + kTile * room_;
    total_ = largest_ + kHeads;
  }

  void run() {
    const T* q = (const T*)job_.q + (token_ * job_.heads + head_) * width_;
    for_vectors(heads_ * width_, [&](int64_t i, auto lanes) {
      store(q_ + i, load(q + i, lanes) * vset(job_.scale), lanes);
    });
    std::fill_n(sums_, heads_ * latent_room_, 0.0f);
    std::fill_n(rows_, kTile * room_, 0.0f);
    std::fill_n(largest_, heads_, -std::numeric_limits<float>::infinity());
    std::fill_n(total_, heads_, 0.0f);
    const int32_t* chosen = job_.chosen + token_ * job_.top_k;
    const int32_t* blocks = job_.blocks_of(token_);
    int64_t held = 0;
    for (int64_t i = 0; i < job_.top_k; ++i) {
      if (chosen[i] < 0) continue;
      convert_row(job_.rows.at<C>(blocks, chosen[i]), rows_ + held * room_, width_);
      if (++held < kTile) continue;
      add(held);
      held = 0;
    }
    if (held > 0) add(held);
    T* out = (T*)job_.out + (token_ * job_.heads + head_) * job_.latent;
    for (int64_t h = 0; h < heads_; ++h) {
      const Vec factor = vset(1.0f / total_[h]);
      for_vectors(job_.latent, [&](int64_t i, auto lanes) {
        store(out + h * job_.latent + i, load(sums_ + h * latent_room_ + i, lanes) * factor, lanes);
      });
    }
  }

 private:
  // Takes in the first n rows of the tile.
  void add(int64_t n) {
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t d = 0; d < width_; ++d) turned_[d * kTile + j] = rows_[j * room_ + d];
    }
    const int64_t columns = round_up(n, kStrip);
    for (int64_t d = 0; d < width_; ++d) {
      std::fill(turned_ + d * kTile + n, turned_ + d * kTile + columns, 0.0f);
    }
    multiply(q_, width_, heads_, turned_, kTile, columns, width_, scores_, kTile, false);
    for (int64_t h = 0; h < heads_; ++h) weigh(h, n);
    multiply(scores_, kTile, heads_, rows_, room_, latent_room_, n, sums_, latent_room_, true);
  }

  // Makes weights of a head's scores, relative to the largest so far.
  void weigh(int64_t h, int64_t n) {
    float* scores = scores_ + h * kTile;
    float largest = largest_[h];
    for (int64_t j = 0; j < n; ++j) largest = std::max(largest, scores[j]);
    const float factor = std::exp(largest_[h] - largest);
    largest_[h] = largest;
    Vec total = vzero();
    for_vectors(n, [&](int64_t j, auto lanes) {
      store(scores + j, vexp(load(scores + j, lanes) - vset(largest)), lanes);
      total += load(scores + j, lanes);
    });
    total_[h] = total_[h] * factor + vsum(total);
    if (factor == 1.0f) return;
    float* sums = sums_ + h * latent_room_;
    for (int64_t i = 0; i < latent_room_; i += VL) vstore(sums + i, vload(sums + i) * vset(factor));
  }

  const Attending& job_;
  const int64_t token_, head_, heads_, width_, room_, latent_room_;
  float *q_, *sums_, *scores_, *rows_, *turned_, *largest_, *total_;
};

void sparse_attention(uintptr_t out, uintptr_t q, uintptr_t cache, int64_t block_stride,
                      uintptr_t chosen, uintptr_t table, int64_t table_stride, uintptr_t starts,
                      int64_t count, int64_t heads, int64_t width, int64_t latent,
                      int64_t block_size, int64_t top_k, float scale, int dtype, int cache_dtype) {
  const Attending job{(void*)out,
                      (const void*)q,
                      {(const void*)cache, block_stride, block_size, width},
                      (const int32_t*)chosen,
                      (const int32_t*)table,
                      (const int32_t*)starts,
                      count,
                      table_stride,
                      heads,
                      latent,
                      top_k,
                      scale};
  const int64_t tokens = count > 0 ? job.starts[count] : 0, parts = (heads + kHeads - 1) / kHeads;
  visit_float(dtype, [&](auto type) {
    visit_float(cache_dtype, [&](auto kept) {
      parallel_dynamic(tokens * parts, [&](int64_t i) {
        Task<decltype(type), decltype(kept)>(job, i / parts, i % parts * kHeads).run();
      });
    });
  });
}

}  // namespace
}  // namespace hotshoe::sparse

namespace hotshoe {

void bind_sparse_attention(nb::module_& m) {
  m.def("sparse_attention", recorded(&sparse::sparse_attention),
        nb::call_guard<nb::gil_scoped_release>(),
        "sparse_attention(out, q, cache, block_stride, chosen, table, table_stride, starts, count,\n"
        "    heads, width, latent, block_size, top_k, scale, dtype, cache_dtype)\n\n"
        "Attend with every token of count requests to the rows that it has chosen; keys are whole\n"
        "rows, values their first `latent` numbers. Addresses: out [tokens, heads, latent] and q\n"
        "[tokens, heads, width] of the dtype, cache [blocks, block_size, width], chosen [tokens,\n"
        "top_k] int32, of which negative ones do not exist, table [count, columns], starts\n"
        "[count + 1] int32. Strides count elements.\n\n"
        "Raises:\n    ValueError: an unknown dtype.");
}

}  // namespace hotshoe
