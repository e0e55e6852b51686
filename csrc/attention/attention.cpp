// Paged attention of mixed prefill and decode batches, causal unless `ahead` says otherwise.
//
// Per block and kv head the cache holds K as [head_dim / p][block_size][p] and V as
// [block_size / p][head_dim][p], p = 2 for 16-bit types and 1 for float: the layout that pair
// multiply-adds and tile multipliers read directly. Numbers of 8 bits are widened as they are
// read, or once for many rows. A task of the plan (plan.h) walks its keys in chunks: scores
// (tiles.h), online softmax (softmax.h), weighted values.
// Source: Dao et al. 2022, arXiv:2205.14135; Kwon et al. 2023, arXiv:2309.06180.

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <memory>
#include <stdexcept>

#include "attention/amx_tiles.h"
#include "attention/plan.h"
#include "attention/scratch.h"
#include "attention/softmax.h"
#include "attention/tiles.h"
#include "common/parallel.h"
#include "common/rows.h"

namespace hotshoe {
namespace {

// One task: a unit on consecutive kv heads, whose keys and values lie side by side in each block.
// T is what queries and results are, S what the cache keeps.
template <class T, class S>
class TaskRun {
  using A = Operand<T>;
  static constexpr int kPack = Dot<A, S>::pack;

 public:
  TaskRun(const AttentionArgs& args, const ScoreMap& map, const Plan& plan, const Task& task)
      : args_(args),
        map_(map),
        unit_(plan.units[task.unit]),
        queries_(&plan.queries[unit_.first_query]),
        first_head_(task.first_head),
        heads_(task.num_heads),
        group_size_(args.num_heads / args.num_kv_heads),
        rows_(unit_.num_queries * group_size_),
        block_shift_(std::countr_zero(unsigned(args.block_size))),
        wide_(kIsNarrow<S> && rows_ > kReadingRows),
        tiled_(kHasTiles && std::is_same_v<T, bf16> && rows_ >= kMinTiledRows &&
               (wide_ || !kIsNarrow<S>) && args.head_dim % (2 * kTileWidth) == 0 &&
               args.block_size % kTileKeys == 0),
        head_rows_(tiled_ ? round_up(rows_, 16) : rows_),
        s_({heads_, head_rows_, args.head_dim, args.token_scales, wide_}) {
    if (tiled_) configure_tiles();
  }

  ~TaskRun() {
    if (tiled_) release_tiles();
  }

  void compute() {
    start();
    for (int key = unit_.key_begin; key < unit_.key_end; key += kChunk) {
      const int n = std::min(kChunk, unit_.key_end - key);
      if (args_.token_scales) fetch_scales(key, n);
      scores(key, n);
      weights(key, n);
      values(key, n);
    }
  }

  void store_all() {
    for_rows([&](int head, int row, int at) {
      store_row(head, row, s_.out(at), s_.states[at].sum);
    });
  }

  // Leaves the results where those of the queries' other splits will be. `partial` holds all.
  void store_partial(float* partial) const {
    for_rows([&](int head, int row, int at) {
      float* to = partial_row(partial, head, row / group_size_, unit_.split, row % group_size_);
      std::memcpy(to, &s_.states[at], sizeof(RowState));
      std::memcpy(to + 2, s_.out(at), size_t(args_.head_dim) * 4);
    });
  }

  // Joins the results of all splits of one of the unit's queries and stores them.
  void merge(float* partial, int head, int query) {
    const int num_splits = queries_[query].num_splits;
    for (int i = 0; i < group_size_; ++i) {
      const auto from = [&](int split) { return partial_row(partial, head, query, split, i); };
      float reference = kMinusInfinity, sum = 0;
      for (int split = 0; split < num_splits; ++split) {
        reference = std::max(reference, from(split)[0]);
      }
      float* out = s_.out(0);
      std::fill(out, out + s_.out_stride, 0.0f);
      for (int split = 0; split < num_splits; ++split) {
        const float* part = from(split);
        const float factor = rescale_factor(part[0], reference, map_.exponent());
        sum += factor * part[1];
        for (int d = 0; d < args_.head_dim; ++d) out[d] += factor * part[2 + d];
      }
      store_row(head, query * group_size_ + i, out, sum);
    }
  }

 private:
  // Calls f(kv head of the task, row of the head, row of the scratch memory).
  template <class F>
  void for_rows(const F& f) const {
    for (int head = 0; head < heads_; ++head) {
      for (int row = 0; row < rows_; ++row) f(head, row, head * head_rows_ + row);
    }
  }

  int64_t query_head(int head, int row) const {
    return int64_t(first_head_ + head) * group_size_ + row % group_size_;
  }

  int64_t token_of(int row) const { return queries_[row / group_size_].token; }

  T* result_of(int head, int row) const {
    return static_cast<T*>(args_.out) + token_of(row) * args_.out_stride +
           query_head(head, row) * args_.head_dim;
  }

  float* partial_row(float* partial, int head, int query, int split, int row) const {
    const Query& at = queries_[query];
    const int64_t splits = int64_t(first_head_ + head) * at.num_splits + split;
    return partial + at.partial + (splits * group_size_ + row) * (args_.head_dim + 2);
  }

  // Scales and rounds one row of the accumulator into the output.
  void store_row(int head, int row, const float* out, float sum) {
    const float scale = args_.kv_scales ? args_.kv_scales[1] : 1.0f;
    const Vec factor = vset(sum == 0.0f ? 0.0f : scale / sum);
    T* to = result_of(head, row);
    for_vectors(args_.head_dim, [&](int64_t d, auto lanes) {
      store(to + d, load(out + d, lanes) * factor, lanes);
    });
  }

  void start() {
    for_rows([&](int head, int row, int at) {
      const T* q = static_cast<const T*>(args_.q) + token_of(row) * args_.q_stride;
      convert_row(q + query_head(head, row) * args_.head_dim, s_.q(at), args_.head_dim);
      // Results go where no processor foresees, so their lines are asked for early.
      constexpr int kLine = 64 / sizeof(T);
      T* result = result_of(head, row);
      for (int d = 0; d < args_.head_dim; d += kLine) __builtin_prefetch(result + d, 1);
      // A sink is a key of its own without a value; only the first split counts it.
      const bool sink = args_.sinks && unit_.split == 0;
      s_.states[at] = sink ? RowState{args_.sinks[query_head(head, row)] / map_.unit, 1.0f}
                           : RowState{kMinusInfinity, 0.0f};
    });
  }

  // Of the first head; those of the others follow `head_stride` apart.
  const S* block(const void* cache, int key) const {
    return block_start(cache, key) + first_head_ * args_.head_stride;
  }

  const S* block_start(const void* cache, int key) const {
    const int32_t* table = args_.block_table + unit_.request * args_.table_stride;
    return static_cast<const S*>(cache) + table[key >> block_shift_] * args_.block_stride;
  }

  // Calls f(first key, count) on runs of the chunk's keys that lie in one block.
  template <class F>
  void for_blocks(int key, int n, const F& f) const {
    for (const int end = key + n; key < end;) {
      const int count = std::min(args_.block_size - offset_in_block(key), end - key);
      f(key, count);
      key += count;
    }
  }

  void fetch_scales(int chunk, int n) {
    const int64_t behind = args_.num_kv_heads * args_.head_stride;
    const auto fetch = [&](const void* cache, int head, float* to) {
      for_blocks(chunk, n, [&](int key, int count) {
        const auto* scales = reinterpret_cast<const float*>(block_start(cache, key) + behind);
        scales += int64_t(first_head_ + head) * args_.block_size + offset_in_block(key);
        std::memcpy(to + key - chunk, scales, size_t(count) * 4);
      });
      std::fill(to + n, to + padded_keys(n), 0.0f);
    };
    for (int head = 0; head < heads_; ++head) {
      fetch(args_.k_cache, head, s_.key_scales(head));
      fetch(args_.v_cache, head, s_.value_scales(head));
    }
  }

  int padded_keys(int n) const { return round_up(n, std::max(2 * VL, group_keys())); }

  // Before the chunk that begins at this key nothing was added to the results.
  bool is_first(int key) const { return key == unit_.key_begin; }

  int offset_in_block(int key) const { return key & (args_.block_size - 1); }

  void scores(int key, int n) {
    if (wide_) return wide_scores(key, n);
    const int width = tiled_ ? kTileWidth : std::min(VL, args_.block_size);
    const int columns = (n + width - 1) / width, padded = round_up(columns, kScoreColumns);
    // All columns, then what is fetched beside the last of them.
    const S* keys[kMaxColumns + kScoreColumns];
    for (int c = 0; c < padded + kScoreColumns; ++c) {
      const int at = key + std::min(c < padded ? c : c - padded, columns - 1) * width;
      keys[c] = block(c < padded ? args_.k_cache : args_.v_cache, at) +
                offset_in_block(at) * kPack;
    }
    score_columns(keys, columns, width, int64_t(args_.block_size) * kPack);
  }

  // Widens the chunk's keys first, into one block of them all.
  void wide_scores(int chunk, int n) {
    if constexpr (kIsNarrow<S>) {
      for_blocks(chunk, n, [&](int key, int count) {
        const S* from = block(args_.k_cache, key) + offset_in_block(key) * kPack;
        bf16* to = s_.wide + (key - chunk) * kPack;
        for (int d = 0; d < args_.head_dim; d += kPack) {
          widen_row(from, to, count * kPack);
          from += args_.block_size * kPack;
          to += kWideStride;
        }
      });
      const int width = tiled_ ? kTileWidth : VL, columns = (n + width - 1) / width;
      const bf16* keys[kMaxColumns + kScoreColumns];
      for (int c = 0; c < round_up(columns, kScoreColumns) + kScoreColumns; ++c) {
        keys[c] = s_.wide + std::min(c, columns - 1) * width * kPack;
      }
      score_columns(keys, columns, width, kWideStride);
    }
  }

  // Addresses are those of all columns, and of as many more as are scored at once.
  template <class E>
  void score_columns(const E* const* keys, int columns, int width, int64_t key_step) {
    for (int first = 0; first < columns; first += kScoreColumns) {
      for (int head = 0; head < heads_; ++head) {
        const bool last = head + 1 == heads_;
        const int at = head * head_rows_;
        const ScoreJob<A, E> job{s_.q(at),
                                 args_.head_dim,
                                 keys + first,
                                 keys + first + (last ? kScoreColumns : 0),
                                 head * args_.head_stride,
                                 last ? 0 : (head + 1) * args_.head_stride,
                                 key_step,
                                 args_.head_dim / kPack,
                                 s_.scores(at) + first * width,
                                 kScoreStride,
                                 width};
        score(job, std::min(kScoreColumns, columns - first));
      }
    }
  }

  template <class E>
  void score(const ScoreJob<A, E>& job, int columns) const {
    if constexpr (kHasTiles && std::is_same_v<A, bf16> && std::is_same_v<E, bf16>) {
      if (tiled_) return compute_scores_tiled(job, rows_, columns);
    }
    compute_scores(job, rows_, columns);
  }

  void weights(int key, int n) {
    const int padded = padded_keys(n);
    for_rows([&](int head, int row, int at) {
      const int position = queries_[row / group_size_].position - key;  // relative to the chunk
      const int there = args_.num_keys ? args_.num_keys[unit_.request] - key : n;
      const int end = std::clamp(std::min(position + 1 + args_.ahead, there), 0, n);
      const int begin = args_.window > 0 ? std::clamp(position - args_.window + 1, 0, end) : 0;
      RowTerms terms;
      if (args_.token_scales) terms = {s_.key_scales(head), s_.value_scales(head)};
      if (args_.slopes) {
        terms.slope = args_.slopes[query_head(head, row)] / map_.unit;
        terms.position = position;
      }
      if (args_.bias) {
        const int64_t width = int64_t(args_.bias_stride ? 1 : 2) * args_.bias_span + 1;
        terms.bias = args_.bias + token_of(row) * args_.bias_stride + query_head(head, row) * width;
        terms.span = args_.bias_span;
        terms.position = position;
        terms.per_logit = 1.0f / map_.unit;
      }
      if (args_.num_nodes) {
        terms.first_node = args_.seq_lens[unit_.request] - args_.num_nodes[unit_.request] - key;
        terms.line = args_.lines[token_of(row)];
      }
      const float rescale = softmax_row(s_.scores(at), begin, end, padded, map_, terms,
                                        s_.states[at], s_.weights(at));
      if (rescale == 1.0f || is_first(key)) return;
      const Vec factor = vset(rescale);
      float* out = s_.out(at);
      for (int d = 0; d < s_.out_stride; d += VL) vstore(out + d, vload(out + d) * factor);
    });
  }

  void values(int key, int n) {
    if (wide_) return wide_values(key, n);
    Segment<S> segments[kChunk / 8];
    int count = 0;
    const bool first_chunk = is_first(key);
    const int rest = n % group_keys(), end = key + n - rest;
    const S* then = block(args_.k_cache, std::min(key + kChunk, unit_.key_end - 1));
    for_blocks(key, n - rest, [&](int first, int keys) {
      segments[count++] = {block(args_.v_cache, first) +
                               int64_t(offset_in_block(first)) * args_.head_dim,
                           keys / kPack};
    });
    // One head takes all blocks at once; several go through each block side by side.
    const int run = heads_ > 1 ? 1 : count;
    int column = 0;
    for (int first = 0; first < count; first += run) {
      const S* following = first + run < count ? segments[first + run].values : then;
      for (int head = 0; head < heads_; ++head) {
        const S* next_head = segments[first].values + (head + 1) * args_.head_stride;
        add_values(segments + first, run, head * args_.head_stride, head, column,
                   head + 1 < heads_ ? next_head : following, first_chunk && first == 0);
      }
      column += segments[first].steps * kPack;
    }
    for (int head = 0; rest && head < heads_; ++head) {
      const Segment<S> last{last_values(end, rest, head), group_keys() / kPack};
      add_values(&last, 1, 0, head, n - rest, then, first_chunk && count == 0);
    }
  }

  // Widens the chunk's values first, one behind the other, up to a group with zeros.
  void wide_values(int chunk, int n) {
    if constexpr (kIsNarrow<S>) {
      const int dim = args_.head_dim, padded = round_up(n, group_keys());
      for_blocks(chunk, n, [&](int key, int count) {
        const S* from = block(args_.v_cache, key) + int64_t(offset_in_block(key)) * dim;
        widen_row(from, s_.wide + (key - chunk) * dim, round_up(count, kPack) * dim);
      });
      bf16* last = s_.wide + n / kPack * kPack * dim;
      for (int d = 0; d < dim && n % kPack; ++d) last[d * kPack + 1] = bf16{};
      std::fill(s_.wide + round_up(n, kPack) * dim, s_.wide + padded * dim, bf16{});
      const Segment<bf16> all{s_.wide, padded / kPack};
      add_values(&all, 1, 0, 0, 0, s_.wide, is_first(chunk));
    }
  }

  // The values of `head` lie `value_at` behind the segments; their weights begin at `column`.
  template <class E>
  void add_values(const Segment<E>* segments, int count, int64_t value_at, int head, int column,
                  const E* next, bool first) {
    const int at = head * head_rows_;
    const ValueJob<A, E> job{s_.weights(at) + column,
                             Scratch<A, S>::kWeightStride,
                             segments,
                             count,
                             value_at,
                             next,
                             int64_t(args_.head_dim) * kPack,
                             s_.out(at),
                             s_.out_stride,
                             args_.head_dim,
                             first};
    if constexpr (kHasTiles && std::is_same_v<A, bf16> && std::is_same_v<E, bf16>) {
      if (tiled_) return accumulate_values_tiled(job, rows_);
    }
    accumulate_values(job, rows_);
  }

  // Keys that are multiplied together; the weights of the last ones are 0 where there is no key.
  int group_keys() const { return tiled_ ? kTileKeys : kPack; }

  // The values of the last `count` keys, filled up to a group with zeros: what the cache holds
  // there may be NaN, which a weight of 0 would not remove.
  const S* last_values(int key, int count, int head) {
    const S* from = block(args_.v_cache, key) + head * args_.head_stride +
                    int64_t(offset_in_block(key)) * args_.head_dim;
    S* to = s_.last_values;
    const int whole = count / kPack * kPack * args_.head_dim;
    std::copy(from, from + whole, to);
    std::fill(to + whole, to + group_keys() * args_.head_dim, S{});
    for (int d = 0; d < args_.head_dim && count % kPack; ++d) {
      to[whole + d * kPack] = from[whole + d * kPack];
    }
    return to;
  }

  const AttentionArgs& args_;
  const ScoreMap& map_;
  const Unit& unit_;
  const Query* const queries_;
  const int first_head_, heads_, group_size_;
  const int rows_;  // of each head
  const int block_shift_;
  const bool wide_;  // what the cache keeps is widened before it is multiplied
  const bool tiled_;
  const int head_rows_;  // between heads in the scratch memory
  Scratch<A, S> s_;
};

// Memory that outlives a call, one set for each calling thread.
struct Workspace {
  Plan plan;
  std::vector<float> partial;
  std::vector<std::atomic<int>> unfinished;  // splits of (query that has several, kv head)
};

void prepare_partials(const AttentionArgs& args, Workspace& work) {
  const size_t count = size_t(work.plan.num_counters) * args.num_kv_heads;
  if (work.partial.size() < size_t(work.plan.partial_floats)) {
    work.partial.resize(work.plan.partial_floats);
  }
  if (work.unfinished.size() < count) work.unfinished = std::vector<std::atomic<int>>(count);
  for (const Query& query : work.plan.queries) {
    if (query.num_splits < 2) continue;
    std::atomic<int>* of_heads = &work.unfinished[size_t(query.counter) * args.num_kv_heads];
    for (int head = 0; head < args.num_kv_heads; ++head) of_heads[head] = query.num_splits;
  }
}

template <class T, class S>
void run_task(const AttentionArgs& args, const ScoreMap& map, Workspace& work, int64_t index) {
  const Task& task = work.plan.tasks[index];
  const Unit& unit = work.plan.units[task.unit];
  TaskRun<T, S> run(args, map, work.plan, task);
  run.compute();
  const Query* queries = &work.plan.queries[unit.first_query];
  if (queries->num_splits == 1) return run.store_all();
  run.store_partial(work.partial.data());
  for (int i = 0; i < unit.num_queries; ++i) {
    std::atomic<int>* left = &work.unfinished[size_t(queries[i].counter) * args.num_kv_heads];
    for (int head = 0; head < task.num_heads; ++head) {
      if (left[task.first_head + head].fetch_sub(1, std::memory_order_acq_rel) > 1) continue;
      run.merge(work.partial.data(), head, i);
    }
  }
}

}  // namespace

void attend(const AttentionArgs& args, int dtype, int kv_dtype) {
  thread_local Workspace work;
  Workspace& shared = work;  // thread_local names would mean the workers' own
  make_plan(args, num_threads(), shared.plan);
  prepare_partials(args, shared);
  const ScoreMap map(args.scale * (args.kv_scales ? args.kv_scales[0] : 1.0f), args.softcap);
  const int64_t tasks = int64_t(shared.plan.tasks.size());
  visit_float(dtype, [&](auto tag) {
    using T = decltype(tag);
    visit_stored<T>(dtype, kv_dtype, [&](auto stored) {
      parallel_dynamic(tasks, [&](int64_t i) {
        run_task<T, decltype(stored)>(args, map, shared, i);
      });
    });
  });
}

}  // namespace hotshoe
