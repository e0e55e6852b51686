// Latent attention of each query to all rows before it, to those of a window, or to those that it has
// chosen: keys are whole rows, values their first numbers, and all heads read the same rows. Behind
// the rows of tokens may stand entries of a second cache, each of which is made of a group of tokens.
//
// A query of one head is a column. Up to kColumns of them pass over a tile of rows at a time, which
// is read once for all of them: scores [rows, columns], online softmax down the columns, values.
// Sources: DeepSeek-V2, arXiv:2405.04434; Milakov and Gimelshein 2018, arXiv:1805.02867.

#include <nanobind/nanobind.h>

#include <limits>
#include <memory>
#include <vector>

#include "common/exponential.h"
#include "common/parallel.h"
#include "latent/product.h"
#include "latent/rows.h"
#include "latent/turn.h"
#include "record/record.h"

namespace nb = nanobind;

namespace hotshoe::latent {
namespace {

constexpr int64_t kTile = 64;     // rows
constexpr int64_t kColumns = 32;  // queries of single heads
static_assert(kColumns % VL == 0);
// Splitting below this many rows costs more than it gains.
constexpr int64_t kMinSplitRows = 256;
// Units per thread at which uneven lengths no longer matter.
constexpr int64_t kUnitsPerThread = 4;
constexpr float kLeast = std::numeric_limits<float>::lowest();
// A sink beyond 2 to this times all weights leaves nothing of them, whatever it is.
constexpr float kMostOver = 126.0f;

struct Table {
  const int32_t* blocks;
  int64_t stride;
};

struct Attending {
  void* out;
  const void* q;
  PagedRows rows, entries;  // a group of 0 tokens stands for no entries
  Table table, entry_table;
  // [tokens, top_k], of entries where there are any, else of rows. Negative ones do not exist; null
  // for all.
  const int32_t* chosen;
  const int32_t *starts, *lens;
  int64_t count, heads, latent, top_k;
  int64_t window;        // rows that a query sees, its own the last one; 0 for all
  const float* sinks;    // a logit of each head, or null
  const float* cos_sin;  // [positions, rope], by which results are turned back
  int64_t rope;          // their last numbers
  float scale;

  bool chooses_rows() const { return chosen && entries.group == 0; }
};

// Some heads of consecutive tokens of a request, over some of their rows.
struct Unit {
  int64_t request, token, tokens, head, heads;
  int64_t position;    // of the first token
  int64_t first, rows;  // the first row of a token that is seen, and how many there are
  int64_t begin, end;   // of these rows, or of `chosen`, and of entries behind them
  int64_t partial;     // floats before its sums, -1 where it is alone
  int64_t splits;      // of the first unit of several: how many there are
};

// What a unit leaves for others to join: sums [columns, latent], then references and totals.
int64_t partial_floats(const Attending& job) { return kColumns * (job.latent + 2); }

template <class T>
class Task {
 public:
  Task(const Attending& job, const Unit& unit)
      : job_(job),
        unit_(unit),
        columns_(unit.tokens * unit.heads),
        room_columns_(round_up(columns_, VL)),
        width_(job.rows.width()),
        room_(round_up(width_, VL)),
        latent_room_(round_up(job.latent, VL)) {
    q_ = (float*)thread_scratch(
        sizeof(float) * size_t(kColumns * (width_ + latent_room_ + kTile + 2) + kTile * room_));
    sums_ = q_ + kColumns * width_;
    scores_ = sums_ + kColumns * latent_room_;
    rows_ = scores_ + kColumns * kTile;
    largest_ = rows_ + kTile * room_;
    total_ = largest_ + kColumns;
  }

  void compute() {
    start();
    int64_t held = 0;
    for (int64_t i = unit_.begin; i < unit_.end; ++i) {
      if (!fetch(i, rows_ + held * room_)) continue;
      if (++held < kTile) continue;
      add(i + 1 - held, held);
      held = 0;
    }
    if (held > 0) add(unit_.end - held, held);
  }

  void store_all() {
    for (int64_t c = 0; c < columns_; ++c) {
      store_column(c, sums_ + c * latent_room_, largest_[c], total_[c]);
    }
  }

  void store_partial(float* to) const {
    for (int64_t c = 0; c < columns_; ++c) {
      std::copy_n(sums_ + c * latent_room_, job_.latent, to + c * job_.latent);
    }
    to += kColumns * job_.latent;
    std::copy_n(largest_, kColumns, to);
    std::copy_n(total_, kColumns, to + kColumns);
  }

  // Joins what this unit and the others of the same queries left.
  void merge(const float* parts) {
    const int64_t size = partial_floats(job_), states = kColumns * job_.latent;
    for (int64_t c = 0; c < columns_; ++c) {
      float reference = kLeast, total = 0;
      for (int64_t s = 0; s < unit_.splits; ++s) {
        reference = std::max(reference, parts[s * size + states + c]);
      }
      std::fill_n(sums_, latent_room_, 0.0f);
      for (int64_t s = 0; s < unit_.splits; ++s) {
        const float* part = parts + s * size;
        const float factor = vfirst(vexp2(vset(part[states + c] - reference)));
        total += factor * part[states + kColumns + c];
        for_vectors(job_.latent, [&](int64_t i, auto lanes) {
          const Vec sum = load(sums_ + i, lanes);
          store(sums_ + i, vfma(vset(factor), load(part + c * job_.latent + i, lanes), sum), lanes);
        });
      }
      store_column(c, sums_, reference, total);
    }
  }

 private:
  int64_t head(int64_t c) const { return unit_.head + c % unit_.heads; }

  // The row of q that is a column here.
  int64_t query(int64_t c) const {
    return (unit_.token + c / unit_.heads) * job_.heads + head(c);
  }

  // Reads what stands at place i; false where nothing was chosen there.
  bool fetch(int64_t i, float* to) const {
    const bool own = i < unit_.rows;
    int64_t at = own ? unit_.first + i : i - unit_.rows;
    if (job_.chosen && own == job_.chooses_rows()) {
      at = job_.chosen[unit_.token * job_.top_k + (own ? i : at)];
      if (at < 0) return false;
    }
    const Table& table = own ? job_.table : job_.entry_table;
    (own ? job_.rows : job_.entries).load(table.blocks + unit_.request * table.stride, at, to);
    return true;
  }

  // Queries side by side, times the factor that makes exponents of 2 of scores.
  void start() {
    std::fill_n(q_, width_ * room_columns_, 0.0f);
    const Vec scale = vset(job_.scale * kLog2E);
    for (int64_t c = 0; c < columns_; ++c) {
      const T* q = static_cast<const T*>(job_.q) + query(c) * width_;
      float* row = rows_;
      for_vectors(width_, [&](int64_t i, auto lanes) {
        store(row + i, load(q + i, lanes) * scale, lanes);
      });
      for (int64_t d = 0; d < width_; ++d) q_[d * room_columns_ + c] = row[d];
    }
    std::fill_n(sums_, columns_ * latent_room_, 0.0f);
    std::fill_n(rows_, kTile * room_, 0.0f);
    std::fill_n(largest_, kColumns, kLeast);
    std::fill_n(total_, kColumns, 0.0f);
  }

  // Takes in the first n rows of the tile; without choices they are those from place `first` on.
  void add(int64_t first, int64_t n) {
    multiply({rows_, room_, 1}, n, q_, room_columns_, room_columns_, width_, scores_,
             room_columns_, false);
    if (unit_.tokens > 1) hide(first, n);
    for (int64_t c = 0; c < room_columns_; c += VL) weigh(c, n);
    multiply({scores_, 1, room_columns_}, columns_, rows_, room_, latent_room_, n, sums_,
             latent_room_, true);
  }

  // Of what a query does not see nothing counts; one query alone sees all of its unit.
  void hide(int64_t first, int64_t n) {
    for (int64_t t = 0; t < unit_.tokens; ++t) {
      const int64_t own = unit_.position + t;
      const int64_t least = job_.window > 0 ? own + 1 - job_.window : 0;
      for (int64_t j = 0; j < n; ++j) {
        const int64_t i = first + j, at = unit_.first + i;
        const bool seen = i < unit_.rows
                              ? at >= least && at <= own
                              : (i - unit_.rows + 1) * job_.entries.group <= own + 1;
        if (seen) continue;
        std::fill_n(scores_ + j * room_columns_ + t * unit_.heads, unit_.heads,
                    -std::numeric_limits<float>::infinity());
      }
    }
  }

  // Makes weights of the scores of VL columns, relative to the largest so far.
  void weigh(int64_t column, int64_t n) {
    float* scores = scores_ + column;
    const Vec before = vload(largest_ + column);
    Vec largest = before, total = vzero();
    for (int64_t j = 0; j < n; ++j) largest = vmax(vload(scores + j * room_columns_), largest);
    for (int64_t j = 0; j < n; ++j) {
      const Vec weight = vexp2(vload(scores + j * room_columns_) - largest);
      vstore(scores + j * room_columns_, weight);
      total += weight;
    }
    const Vec factor = vexp2(before - largest);
    vstore(largest_ + column, largest);
    vstore(total_ + column, vfma(vload(total_ + column), factor, total));
    float factors[VL];
    vstore(factors, factor);
    for (int64_t c = 0; c < std::min<int64_t>(VL, columns_ - column); ++c) {
      if (factors[c] == 1.0f) continue;
      float* sums = sums_ + (column + c) * latent_room_;
      for (int64_t i = 0; i < latent_room_; i += VL) {
        vstore(sums + i, vload(sums + i) * vset(factors[c]));
      }
    }
  }

  // A query without rows has zeros. `total` is relative to 2^reference, as sums are.
  void store_column(int64_t c, const float* sums, float reference, float total) {
    if (job_.sinks && total != 0.0f) {
      const float over = job_.sinks[head(c)] * kLog2E - reference;
      total += over > kMostOver ? std::numeric_limits<float>::infinity()
                                : vfirst(vexp2(vset(over)));
    }
    T* out = static_cast<T*>(job_.out) + query(c) * job_.latent;
    const Vec factor = vset(total == 0.0f ? 0.0f : 1.0f / total);
    float* row = rows_;  // which holds no more rows
    for_vectors(job_.latent, [&](int64_t i, auto lanes) {
      store(row + i, load(sums + i, lanes) * factor, lanes);
    });
    if (job_.rope > 0) {
      const float* turn = job_.cos_sin + (unit_.position + c / unit_.heads) * job_.rope;
      turn_pairs(row + job_.latent - job_.rope, turn, turn + job_.rope / 2, job_.rope / 2, -1.0f);
    }
    convert_row((const float*)row, out, job_.latent);
  }

  const Attending& job_;
  const Unit& unit_;
  const int64_t columns_, room_columns_, width_, room_, latent_room_;
  float *q_, *sums_, *scores_, *rows_, *largest_, *total_;
};

// Units of whole passes over the rows that are seen.
std::vector<Unit> passes(const Attending& job) {
  std::vector<Unit> found;
  const int64_t heads = std::min(kColumns, job.heads);
  const int64_t most = job.chosen ? 1 : std::max<int64_t>(1, kColumns / heads);
  for (int64_t r = 0; r < job.count; ++r) {
    for (int64_t token = job.starts[r]; token < job.starts[r + 1]; token += most) {
      const int64_t tokens = std::min<int64_t>(most, job.starts[r + 1] - token);
      const int64_t position = job.lens[r] - job.starts[r + 1] + token, end = position + tokens;
      const int64_t first = job.window > 0 ? std::max<int64_t>(0, position + 1 - job.window) : 0;
      const int64_t rows = job.chooses_rows() ? job.top_k : end - first;
      int64_t others = 0;
      if (const int64_t group = job.entries.group) others = job.chosen ? job.top_k : end / group;
      for (int64_t head = 0; head < job.heads; head += heads) {
        found.push_back({r, token, tokens, head, std::min(heads, job.heads - head), position, first,
                         rows, 0, rows + others, -1, 0});
      }
    }
  }
  return found;
}

// Cuts passes between rows where otherwise too few threads would be busy.
std::vector<Unit> units_of(const Attending& job, int64_t& partials) {
  const std::vector<Unit> whole = passes(job);
  int64_t total = 0;
  for (const Unit& unit : whole) total += unit.end;
  const int64_t threads = num_threads();
  const int64_t share = std::max(kMinSplitRows, total / (threads * kUnitsPerThread));
  std::vector<Unit> found;
  for (const Unit& unit : whole) {
    const int64_t parts = threads < 2 ? 1 : std::max<int64_t>(1, unit.end / share);
    const int64_t step = round_up((unit.end + parts - 1) / parts, kTile);
    if (unit.end <= step) {
      found.push_back(unit);
      continue;
    }
    for (int64_t begin = 0; begin < unit.end; begin += step) {
      Unit part = unit;
      part.begin = begin;
      part.end = std::min(unit.end, begin + step);
      part.partial = partials;
      part.splits = begin == 0 ? (unit.end + step - 1) / step : 0;
      partials += partial_floats(job);
      found.push_back(part);
    }
  }
  return found;
}

template <class T>
void run(const Attending& job) {
  int64_t size = 0;
  const std::vector<Unit> units = units_of(job, size);
  const std::unique_ptr<float[]> partials(new float[size_t(size)]);
  parallel_dynamic(int64_t(units.size()), [&](int64_t i) {
    const Unit& unit = units[size_t(i)];
    Task<T> task(job, unit);
    task.compute();
    unit.partial < 0 ? task.store_all() : task.store_partial(partials.get() + unit.partial);
  });
  std::vector<const Unit*> first;
  for (const Unit& unit : units) {
    if (unit.splits > 0) first.push_back(&unit);
  }
  parallel_dynamic(int64_t(first.size()), [&](int64_t i) {
    const Unit& unit = *first[size_t(i)];
    Task<T>(job, unit).merge(partials.get() + unit.partial);
  });
}

void latent_attention(uintptr_t out, uintptr_t q, uintptr_t cache, int64_t block_bytes,
                      int64_t row_bytes, uintptr_t chosen, uintptr_t table, int64_t table_stride,
                      uintptr_t starts, uintptr_t lens, int64_t count, uintptr_t sinks,
                      int64_t heads, int64_t latent, int64_t exact, int64_t block_size,
                      int64_t top_k, float scale, int dtype, int cache_dtype) {
  const PagedRows rows{(const void*)cache, block_bytes, row_bytes, block_size, latent, exact,
                       row_reader(dtype, cache_dtype)};
  PagedRows none = rows;
  none.group = 0;
  const Table own{(const int32_t*)table, table_stride};
  const Attending job{(void*)out,
                      (const void*)q,
                      rows,
                      none,
                      own,
                      own,
                      (const int32_t*)chosen,
                      (const int32_t*)starts,
                      (const int32_t*)lens,
                      count,
                      heads,
                      latent,
                      top_k,
                      0,
                      (const float*)sinks,
                      nullptr,
                      0,
                      scale};
  visit_float(dtype, [&](auto type) { run<decltype(type)>(job); });
}

void compressed_attention(uintptr_t out, uintptr_t q, uintptr_t cache, int64_t block_bytes,
                          int64_t row_bytes, uintptr_t table, int64_t table_stride,
                          uintptr_t entries, int64_t entry_block_bytes, int64_t entry_bytes,
                          uintptr_t entry_table, int64_t entry_table_stride, uintptr_t chosen,
                          uintptr_t starts, uintptr_t lens, int64_t count, uintptr_t sinks,
                          uintptr_t cos_sin, int64_t heads, int64_t size, int64_t rope,
                          int64_t window, int64_t group, int64_t block_size, int64_t top_k,
                          float scale, int dtype, int cache_dtype) {
  const ReadRow read = row_reader(dtype, cache_dtype);
  const Attending job{
      (void*)out,
      (const void*)q,
      {(const void*)cache, block_bytes, row_bytes, block_size, size, 0, read},
      {(const void*)entries, entry_block_bytes, entry_bytes, block_size, size, 0, read, group},
      {(const int32_t*)table, table_stride},
      {(const int32_t*)entry_table, entry_table_stride},
      (const int32_t*)chosen,
      (const int32_t*)starts,
      (const int32_t*)lens,
      count,
      heads,
      size,
      top_k,
      window,
      (const float*)sinks,
      (const float*)cos_sin,
      rope,
      scale};
  visit_float(dtype, [&](auto type) { run<decltype(type)>(job); });
}

}  // namespace
}  // namespace hotshoe::latent

namespace hotshoe {

void bind_latent_attention(nb::module_& m) {
  m.def("latent_attention", recorded(&latent::latent_attention),
        nb::call_guard<nb::gil_scoped_release>(),
        "latent_attention(out, q, cache, block_bytes, row_bytes, chosen, table, table_stride,\n"
        "    starts, lens, count, sinks, heads, latent, exact, block_size, top_k, scale, dtype,\n"
        "    cache_dtype)\n\n"
        "Attend with every token of count requests to the rows up to its own, or to those that it\n"
        "has chosen; keys are whole rows, values their first `latent` numbers. Addresses: out\n"
        "[tokens, heads, latent] and q [tokens, heads, latent + exact] of the dtype, cache\n"
        "[blocks, block_size] rows, chosen [tokens, top_k] int32, of which negative ones do not\n"
        "exist, or 0 for all rows, table [count, columns], starts [count + 1] and lens [count]\n"
        "int32; sinks [heads] float32, logits beside those of rows, or 0. table_stride counts\n"
        "elements.\n\n"
        "A row is latent + exact numbers of cache_dtype. Where that is 3 int8, 4 float8_e4m3fn or\n"
        "5 float8_e5m2, it is latent numbers, their float32 scale in 16 bytes, and exact numbers\n"
        "of the dtype.\n\n"
        "Raises:\n    ValueError: an unknown dtype.");
  m.def("compressed_attention", recorded(&latent::compressed_attention),
        nb::call_guard<nb::gil_scoped_release>(),
        "compressed_attention(out, q, cache, block_bytes, row_bytes, table, table_stride, entries,\n"
        "    entry_block_bytes, entry_bytes, entry_table, entry_table_stride, chosen, starts, lens,\n"
        "    count, sinks, cos_sin, heads, size, rope, window, group, block_size, top_k, scale,\n"
        "    dtype, cache_dtype)\n\n"
        "The same with rows of `size` numbers that are keys and values: those of the `window` last\n"
        "tokens, and entries of groups that have ended, all or chosen ones. Without entries group\n"
        "is 0. The last `rope` numbers of results are turned back by the token's position: cos_sin\n"
        "[positions, rope] float32, cosines then sines, by pairs of neighbors. Entries [blocks] lie\n"
        "where the last tokens of their groups would, one row for each group that ends in a block.");
}

}  // namespace hotshoe
