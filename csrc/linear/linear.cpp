// The driver of a linear operation: brings x into the kernel's form, cuts the product into tiles
// for the threads, and turns sums into y.

#include "linear/linear.h"

#include <algorithm>
#include <memory>

#include "activation/gates.h"
#include "common/parallel.h"
#include "common/rows.h"
#include "linear/epilogue.h"
#include "linear/quantize.h"
#include "linear/tile.h"

namespace hotshoe::linear {
namespace {

// Up to here a row of x costs next to nothing beside reading W, which plain vectors do best.
constexpr int64_t kMaxStreamingRows = 4;
// Waking another thread pays from about so many bytes read or multiply-adds made by it.
constexpr int64_t kMinThreadBytes = 128 * 1024;
constexpr int64_t kMinThreadProducts = 512 * 1024;
// And from about so many elements of x that it converts.
constexpr int64_t kMinThreadElements = 32 * 1024;
// A thread that gets so many rows does better with rows of its own, which it has converted into its
// own cache, than with a part of W. Below, reading all of W costs more.
constexpr int64_t kMinOwnRows = 256;
// A thread that falls behind leaves chunks to the others: of this many, or of fewer before rows are
// cut for more.
constexpr int64_t kChunksPerThread = 32, kMinChunksPerThread = 4;
// Form::u8 is the quantised value plus 2^7.
constexpr int kShiftOfU8 = 7, kOffsetOfU8 = 1 << kShiftOfU8;
// Lines of each row that are fetched before they are packed: no processor foresees so many rows.
constexpr int64_t kLinesAhead = 8;
// Rows so far apart, or a multiple of it, share a set of the first-level cache.
constexpr int64_t kCacheWayBytes = 4096;

const Kernel& choose_kernel(const Call& call) {
  const DType weights = call.layout.dtype;
  const Kernel* amx = amx_kernel(weights);
  if (amx && call.m > kMaxStreamingRows) return *amx;
  return weights == DType::i8 ? int8_kernel() : float_kernel(weights);
}

int form_bytes(Form form) {
  switch (form) {
    case Form::f32: return 4;
    case Form::bf16:
    case Form::s16_pairs: return 2;
    default: return 1;
  }
}

// Where the kernel reads x: the caller's tensor, or a converted copy of some rows.
struct XRows {
  const char* data;
  int64_t strip_bytes;
  const float* scales;  // one for each row; quantised forms only
};

// Writes one row in the given form, whose padding is zero already; returns the quantisation
// scale. `bytes` is room for k int8.
template <class T>
float bring_into_form(const T* row, int64_t k, Form form, char* out, int8_t* bytes) {
  if (form == Form::bf16) {
    convert_row(row, (bf16*)out, k);
    return 1.0f;
  }
  if (form == Form::f32) {
    convert_row(row, (float*)out, k);
    return 1.0f;
  }
  const float scale = row_scale(row, k);
  if (form != Form::s16_pairs) {
    quantize_row(row, k, scale, (int8_t*)out, form == Form::u8 ? kOffsetOfU8 : 0);
    return scale;
  }
  quantize_row(row, k, scale, bytes);
  for (int64_t i = 0; i < k; ++i) {
    const int64_t swapped = (i & ~int64_t(3)) | ((i & 1) << 1) | ((i & 2) >> 1);
    ((int16_t*)out)[swapped] = bytes[i];
  }
  return scale;
}

// Memory of the calling thread for converted rows, kept between calls.
char* conversion_buffer(size_t bytes) {
  thread_local size_t capacity = 0;
  thread_local std::unique_ptr<char[]> memory;
  if (bytes > capacity) {
    memory.reset(new char[bytes]);
    capacity = bytes;
  }
  return memory.get();
}

// Lays `rows` rows, `stride` bytes apart, line by line side by side into a strip of `strip` rows:
// it is written from front to end, which row by row would scatter.
void interleave(const char* from, int64_t stride, int64_t rows, int64_t strip, int64_t row_bytes,
                char* to) {
  for (int64_t at = 0; at < row_bytes; at += kLineBytes, to += strip * kLineBytes) {
    for (int64_t r = 0; r < rows; ++r) {
      __builtin_prefetch(from + r * stride + at + kLinesAhead * kLineBytes);
      std::memcpy(to + r * kLineBytes, from + r * stride + at, kLineBytes);
    }
  }
}

XRows convert_rows(const Call& call, const Kernel& kernel, int64_t m_begin, int64_t rows) {
  const int64_t k = call.layout.k, strip = kernel.strip_rows, strips = divide_up(rows, strip);
  int64_t row_bytes =
      round_up(round_up(k, kernel.k_unit) * form_bytes(kernel.form), kLineBytes);
  if (strip == 1 && row_bytes % kCacheWayBytes == 0) row_bytes += kLineBytes;
  char* data = conversion_buffer(size_t(strips * strip * (row_bytes + 4) + kLineBytes));
  data += kLineBytes - intptr_t(data) % kLineBytes;
  auto* scales = (float*)(data + strips * strip * row_bytes);
  visit_float(int(call.x_dtype), [&](auto type) {
    using X = decltype(type);
    const auto* x = (const X*)call.x + m_begin * call.x_stride;
    const bool as_it_is =
        kernel.form == Form::bf16 && std::is_same_v<X, bf16> && k * 2 == row_bytes;
    const auto convert = [&](int64_t begin, int64_t end) {
      char* converted = (char*)thread_scratch(size_t(strip * row_bytes + k));
      for (int64_t first = begin * strip; first < std::min(end * strip, rows); first += strip) {
        const X* from = x + first * call.x_stride;
        const int64_t count = std::min(strip, rows - first);
        char* to = data + first * row_bytes;
        if (as_it_is) {
          interleave((const char*)from, call.x_stride * 2, count, strip, row_bytes, to);
          continue;
        }
        std::memset(converted, 0, size_t(count * row_bytes));
        for (int64_t r = 0; r < count; ++r) {
          scales[first + r] =
              bring_into_form(from + r * call.x_stride, k, kernel.form, converted + r * row_bytes,
                              (int8_t*)converted + strip * row_bytes);
        }
        interleave(converted, row_bytes, count, strip, row_bytes, to);
      }
    };
    parallel_for(strips, convert, divide_up(kMinThreadElements, k * strip));
  });
  return {data, strip * row_bytes, kernel.float_sums ? nullptr : scales};
}

XRows prepare_rows(const Call& call, const Kernel& kernel, int64_t m_begin, int64_t rows) {
  const bool right_form = (kernel.form == Form::bf16 && call.layout.k % kernel.k_unit == 0) ||
                          (kernel.form == Form::f32 && call.x_dtype == DType::f32);
  if (kernel.strip_rows > 1 || !right_form) return convert_rows(call, kernel, m_begin, rows);
  const int64_t stride = call.x_stride * element_bytes(call.x_dtype);
  const bool collide = rows > kMaxStreamingRows && stride % kCacheWayBytes == 0;
  if (collide) return convert_rows(call, kernel, m_begin, rows);
  return {(const char*)call.x + m_begin * stride, stride, nullptr};
}

// The rows of one pass: the product's tiles and their epilogue, done by all threads.
class Pass {
 public:
  Pass(const Call& call, const Kernel& kernel, const XRows& x, int64_t m_begin, int64_t rows,
       int64_t tiles_per_part)
      : call_(call), kernel_(kernel), x_(x), m_begin_(m_begin), rows_(rows) {
    // For one row blocks are read one behind another, as they lie, and nothing is fetched ahead:
    // processors foresee one stream, and what is fetched for the next panel takes its places.
    foreseen_ = rows == 1;
    tile_blocks_ = foreseen_ ? 1 : kernel.max_blocks;
    panel_blocks_ = std::max<int64_t>(kernel.max_blocks, call.layout.parts);
    panel_columns_ = panel_blocks_ / call.layout.parts * kBlockRows;
    panels_ = divide_up(call.layout.blocks, panel_blocks_);
    tiles_ = divide_up(rows, kernel.max_rows);
    groups_ = round_up(call.layout.k, kernel.k_unit) / call.layout.group;
    const int64_t spans = kernel.max_span ? divide_up(groups_, kernel.max_span) : 1;
    span_ = round_up(divide_up(groups_, spans), kernel.k_unit / call.layout.group);
    const int64_t threads = num_threads();
    chunks_ = threads * kChunksPerThread;
    // A part of the rows meets all of W before the next one.
    parts_ = divide_up(tiles_, tiles_per_part);
    if (rows >= kMinOwnRows * threads) parts_ = round_up(parts_, threads);
    // Where there are too few columns for all threads, more parts are.
    parts_ = std::clamp(divide_up(threads * kMinChunksPerThread, panels_), parts_, tiles_);
  }

  void run() const {
    const int64_t tasks = panels_ * parts_;
    const int64_t bytes = call_.layout.block_bytes * panel_blocks_;
    const int64_t products = bytes / kGroupBytes * call_.layout.group * rows_ / parts_;
    const int64_t least = std::min(divide_up(kMinThreadBytes, bytes),
                                   divide_up(kMinThreadProducts, products));
    const int64_t chunk = std::max(least, divide_up(tasks, chunks_));
    parallel_chunks(tasks, chunk, [&](int64_t begin, int64_t end, int64_t following) {
      Epilogue epilogue;
      for (int64_t task = begin; task < end; ++task) {
        const int64_t next = task + 1 < end ? task + 1 : following;
        run_task(task, next < tasks ? next : task, epilogue);
      }
      epilogue.advance(epilogue.rows);
      if (kernel_.finish) kernel_.finish();
    });
  }

 private:
  const char* panel_address(int64_t panel) const {
    return (const char*)call_.weights + panel * panel_blocks_ * call_.layout.block_bytes;
  }

  int64_t tile_begin(int64_t tile) const {
    const int64_t strips = divide_up(rows_, kernel_.strip_rows);
    return std::min(rows_, strips * tile / tiles_ * kernel_.strip_rows);
  }

  // One panel of W by a part of the rows. The thread goes on with task `next`.
  void run_task(int64_t task, int64_t next, Epilogue& epilogue) const {
    const int64_t panel = task % panels_, part = task / panels_;
    const int64_t first = tiles_ * part / parts_, last = tiles_ * (part + 1) / parts_;
    // Each tile of this panel fetches its share of the panel that this thread needs next.
    const char* ahead = panel_address(next % panels_);
    const int64_t step = divide_up(kLineBytes, last - first);
    const int64_t sums_bytes = kernel_.max_rows * kTileCols * 4;
    // As much in every task: sums may wait in it to become y.
    const int64_t tiles_carried = span_ < groups_ ? divide_up(tiles_, parts_) : 0;
    char* sums = (char*)thread_scratch(size_t(sums_bytes * (1 + tiles_carried)));
    Tile t;
    t.x_stride = x_.strip_bytes;
    t.block_bytes = call_.layout.block_bytes;
    const int64_t blocks = std::min(panel_blocks_, call_.layout.blocks - panel * panel_blocks_);
    t.prefetch_step = foreseen_ ? kLineBytes : step;
    t.before = &epilogue;
    for (int64_t group = 0; group < groups_; group += span_) {
      t.groups = std::min(span_, groups_ - group);
      for (int64_t tile = first; tile < last; ++tile) {
        const int64_t row = tile_begin(tile);
        char* carried = tiles_carried ? sums + (1 + tile - first) * sums_bytes : nullptr;
        const bool carry = group + span_ < groups_;
        t.x = x_.data + row / kernel_.strip_rows * x_.strip_bytes +
              group * kernel_.strip_rows * kGroupBytes;
        t.rows = int(tile_begin(tile + 1) - row);
        char* to = carry && group == 0 ? carried : sums;
        // Sums become y while they are close: at once, or beside the next tile where units compute
        // it that wake up slowly from a pause.
        for (int64_t block = 0; block < blocks; block += tile_blocks_) {
          const int64_t offset = block * t.block_bytes;
          t.blocks = int(std::min(tile_blocks_, blocks - block));
          t.w = panel_address(panel) + offset + group * kLineBytes;
          t.prefetch = ahead + offset + ((tile - first) * groups_ + group) * step;
          if (foreseen_) t.prefetch = t.w;  // a line that is read at once
          t.sums = to + block * kBlockRows * 4;
          kernel_.run(t);
        }
        t.sums = to;
        epilogue = carry ? carrying(t, group ? carried : nullptr)
                         : make_epilogue(t, carried, row, panel);
        if (!kernel_.finish) epilogue.advance(t.rows);
      }
    }
  }

  Columns columns(int64_t panel) const {
    const Layout& layout = call_.layout;
    const int64_t first = panel * panel_columns_, place = panel * panel_blocks_ * kBlockRows;
    const int64_t n = std::min(panel_columns_, layout.part_rows - first);
    const float* bias = call_.bias ? call_.bias + first : nullptr;
    const float* up_bias = bias ? bias + layout.part_rows : nullptr;
    if (kernel_.float_sums) return {n, bias, up_bias, nullptr, nullptr, 0};
    return {n, bias, up_bias, layout.scales(call_.weights) + place,
            layout.sums(call_.weights) + place, kernel_.form == Form::u8 ? kShiftOfU8 : 0};
  }

  // Nothing is left to do with the first span's sums: they lie where they are carried.
  Epilogue carrying(const Tile& t, void* carried) const {
    if (!carried) return {};
    return {t.rows, kernel_.float_sums ? carry_rows<false> : carry_rows<true>, t.sums, carried};
  }

  Epilogue make_epilogue(const Tile& t, void* carried, int64_t row, int64_t panel) const {
    Epilogue e;
    visit_float(int(call_.y_dtype), [&](auto type) {
      using Y = decltype(type);
      const Columns c = columns(panel);
      const auto write = call_.layout.parts > 1 ? gated_writer<Y>() : writer<Y>(c);
      e = {t.rows, write, t.sums, carried,
           (Y*)call_.y + (m_begin_ + row) * call_.y_stride + panel * panel_columns_,
           call_.y_stride, x_.scales ? x_.scales + row : nullptr, c};
    });
    return e;
  }

  template <class Y>
  decltype(Epilogue::write) writer(const Columns& c) const {
    constexpr decltype(Epilogue::write) kWriters[2][2] = {
        {write_rows<Y, false, false>, write_rows<Y, false, true>},
        {write_rows<Y, true, false>, write_rows<Y, true, true>}};
    return kWriters[x_.scales != nullptr][c.n == kTileCols];
  }

  template <class Y>
  decltype(Epilogue::write) gated_writer() const {
    return visit_activation(call_.gate, [&](auto act) {
      using Act = decltype(act);
      return x_.scales ? write_gated_rows<Y, true, Act> : write_gated_rows<Y, false, Act>;
    });
  }

  const Call& call_;
  const Kernel& kernel_;
  const XRows& x_;
  bool foreseen_;          // no processor needs help to fetch W
  int64_t tile_blocks_;    // that one call of the kernel reads
  int64_t panel_blocks_;   // two where a gate meets what it opens
  int64_t panel_columns_;  // of y
  int64_t m_begin_, rows_, panels_, tiles_, groups_, span_, chunks_, parts_;
};

void check(const Call& call) {
  const DType weights = call.layout.dtype;
  if (weights != DType::i8 && call.x_dtype != weights) {
    throw std::invalid_argument("x must have the dtype of the weights");
  }
  visit_float(int(call.x_dtype), [](auto) {});
  visit_float(int(call.y_dtype), [](auto) {});
  if (call.layout.parts > 1) visit_activation(call.gate, [](auto) {});
}

}  // namespace

void linear(const Call& call) {
  check(call);
  const Kernel& kernel = choose_kernel(call);
  const int64_t row_bytes = round_up(call.layout.k, kernel.k_unit) * form_bytes(kernel.form);
  const int64_t tiles_per_part =
      std::max<int64_t>(kernel.x_bytes / row_bytes / kernel.max_rows, 4);
  const int64_t strips = divide_up(call.m, kernel.strip_rows);
  // Threads convert as many rows as stay in all their second-level caches, and then multiply them.
  const int64_t passes = divide_up(call.m, num_threads() * tiles_per_part * kernel.max_rows);
  for (int64_t pass = 0; pass < passes; ++pass) {
    const int64_t begin = strips * pass / passes * kernel.strip_rows;
    const int64_t end = std::min(call.m, strips * (pass + 1) / passes * kernel.strip_rows);
    const XRows x = prepare_rows(call, kernel, begin, end - begin);
    Pass(call, kernel, x, begin, end - begin, tiles_per_part).run();
  }
}

}  // namespace hotshoe::linear
