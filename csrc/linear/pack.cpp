// Packing of weight rows into the layout of layout.h, quantising to int8 on the way if asked.

#include "linear/pack.h"

#include <algorithm>
#include <cstring>

#include "common/parallel.h"
#include "linear/quantize.h"

namespace hotshoe::linear {
namespace {

// Spreads a row over its block: its 32-bit group g goes to line g. `padded` holds whole lines.
void scatter_row(const Layout& layout, char* packed, int64_t place, const char* padded) {
  char* block = packed + place / kBlockRows * layout.block_bytes;
  const auto* from = (const uint32_t*)padded;
  auto* to = (uint32_t*)block + place % kBlockRows;
  const int64_t groups = layout.block_bytes / kLineBytes;
  for (int64_t g = 0; g < groups; ++g) to[g * kBlockRows] = from[g];
}

void put_scale_and_sum(const Layout& layout, void* packed, int64_t place, float scale,
                       const int8_t* values) {
  int32_t sum = 0;
  for (int64_t i = 0; i < layout.k; ++i) sum += values[i];
  layout.scales(packed)[place] = scale;
  layout.sums(packed)[place] = sum;
}

// Row i of `rows` to its place in the packed type, by way of `padded`, whose tail is already zero.
void pack_row(const Layout& layout, void* packed, const Rows& rows, int64_t i, int64_t place,
              char* padded) {
  const int64_t offset = i * rows.stride;
  if (layout.dtype == rows.dtype) {
    const int size = element_bytes(rows.dtype);
    std::memcpy(padded, (const char*)rows.data + offset * size, size_t(layout.k * size));
  }
  if (layout.dtype == DType::i8) {
    auto* values = (int8_t*)padded;
    const float scale =
        rows.dtype == DType::i8
            ? rows.scales[i]
            : visit_float(int(rows.dtype), [&](auto type) {
                const auto* from = (const decltype(type)*)rows.data + offset;
                const float found = row_scale(from, layout.k);
                quantize_row(from, layout.k, found, values);
                return found;
              });
    put_scale_and_sum(layout, packed, place, scale, values);
  }
  scatter_row(layout, (char*)packed, place, padded);
}

void check(const Layout& layout, const Rows& rows) {
  if (rows.begin < 0 || rows.count < 0 || rows.begin + rows.count > layout.n) {
    throw std::invalid_argument("rows " + std::to_string(rows.begin) + " to " +
                                std::to_string(rows.begin + rows.count) + " are not within the " +
                                std::to_string(layout.n) + " rows of the weight");
  }
  if (layout.dtype != rows.dtype && layout.dtype != DType::i8) {
    throw std::invalid_argument("only int8 weights are packed from another dtype");
  }
  if (rows.dtype == DType::i8 && rows.scales == nullptr) {
    throw std::invalid_argument("int8 rows need their scales");
  }
}

// Rows of one part; where its last one is among them, its padding too.
void pack_part(const Layout& layout, void* packed, const Rows& rows, int64_t part) {
  const int64_t part_begin = part * layout.part_rows, before = part_begin - rows.begin;
  const int64_t begin = std::max<int64_t>(-before, 0);
  const int64_t end = std::min(rows.begin + rows.count - part_begin, layout.part_rows);
  if (begin >= end) return;
  // Threads must not share a block: cache lines of it belong to all its rows.
  const int64_t first_block = begin / kBlockRows;
  const int64_t end_row = end == layout.part_rows ? round_up(end, kBlockRows) : end;
  const int64_t bytes = layout.block_bytes / kBlockRows;
  parallel_for(divide_up(end_row, kBlockRows) - first_block, [&](int64_t b, int64_t e) {
    char* padded = (char*)thread_scratch(size_t(bytes));
    std::memset(padded, 0, size_t(bytes));
    const int64_t from = std::max((first_block + b) * kBlockRows, begin);
    const int64_t to = std::min((first_block + e) * kBlockRows, end_row);
    for (int64_t row = from; row < std::min(to, end); ++row) {
      pack_row(layout, packed, rows, before + row, layout.place(part, row), padded);
    }
    std::memset(padded, 0, size_t(bytes));
    for (int64_t row = std::max(from, end); row < to; ++row) {
      const int64_t place = layout.place(part, row);
      if (layout.dtype == DType::i8) put_scale_and_sum(layout, packed, place, 0, (int8_t*)padded);
      scatter_row(layout, (char*)packed, place, padded);
    }
  });
}

}  // namespace

void pack_rows(const Layout& layout, void* packed, const Rows& rows) {
  check(layout, rows);
  for (int64_t part = 0; part < layout.parts; ++part) pack_part(layout, packed, rows, part);
}

}  // namespace hotshoe::linear
