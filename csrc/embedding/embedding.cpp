// Embedding gather: rows of a table by token id, optionally scaled.

#include <nanobind/nanobind.h>

#include <atomic>
#include <cmath>
#include <stdexcept>
#include <string>

#include "common/parallel.h"
#include "common/rows.h"
#include "record/record.h"

namespace nb = nanobind;

namespace hotshoe {
namespace {

constexpr int64_t kMinElementsPerThread = 32768;  // below, waking a thread costs more

struct EmbeddingArgs {
  void* out;
  const void *table, *ids;
  int64_t count, size, num_rows, out_stride, table_stride;
  float scale;
};

template <class T>
void copy_row(T* out, const T* row, const EmbeddingArgs& args) {
  if (args.scale == 1.0f) return convert_row(row, out, args.size);
  const Vec scale = vset(args.scale);
  for_vectors(args.size, [&](int64_t i, auto lanes) {
    store(out + i, load(row + i, lanes) * scale, lanes);
  });
}

template <class T, class Id>
void gather(const EmbeddingArgs& args) {
  constexpr int64_t kNone = -1;
  std::atomic<int64_t> bad{kNone};
  const Id* ids = static_cast<const Id*>(args.ids);
  parallel_for(
      args.count,
      [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          if (uint64_t(ids[i]) >= uint64_t(args.num_rows)) {
            bad.store(i, std::memory_order_relaxed);
            continue;
          }
          copy_row(static_cast<T*>(args.out) + i * args.out_stride,
                   static_cast<const T*>(args.table) + int64_t(ids[i]) * args.table_stride, args);
        }
      },
      rows_holding(kMinElementsPerThread, args.size));
  if (const int64_t i = bad.load(); i != kNone) {
    throw std::out_of_range("token id " + std::to_string(int64_t(ids[i])) + " at position " +
                            std::to_string(i) + " is not below " + std::to_string(args.num_rows));
  }
}

}  // namespace

void bind_embedding(nb::module_& m) {
  m.def(
      "embedding",
      recorded(+[](uintptr_t out, uintptr_t table, uintptr_t ids, int64_t count, int64_t size,
                   int64_t num_rows, int64_t out_stride, int64_t table_stride, float scale,
                   bool ids_are_int64, int dtype) {
        const EmbeddingArgs args{reinterpret_cast<void*>(out),
                                 reinterpret_cast<const void*>(table),
                                 reinterpret_cast<const void*>(ids),
                                 count,
                                 size,
                                 num_rows,
                                 out_stride,
                                 table_stride,
                                 scale};
        visit_float(dtype, [&](auto tag) {
          using T = decltype(tag);
          ids_are_int64 ? gather<T, int64_t>(args) : gather<T, int32_t>(args);
        });
      }),
      nb::call_guard<nb::gil_scoped_release>(),
      "embedding(out, table, ids, count, size, num_rows, out_stride, table_stride, scale,\n"
      "    ids_are_int64, dtype)\n\n"
      "out[i] = table[ids[i]] * scale for `count` ids; rows of `size` elements. Addresses.\n\n"
      "Raises:\n    IndexError: An id is negative or not below num_rows; its row is not written.");
}

}  // namespace hotshoe
