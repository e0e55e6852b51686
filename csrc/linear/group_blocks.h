// Blocks of grouped weights as their kernels read them, and the way of sums to y.
#pragma once

#include <algorithm>
#include <memory>

#include "common/parallel.h"
#include "common/rows.h"
#include "common/words.h"
#include "linear/groups.h"

namespace hotshoe::linear {

// Vectors that hold a line.
constexpr int kVectors = kBlockRows / VL;
// Processors foresee a stream, but not as far ahead as memory is away: this many bytes.
constexpr int64_t kAhead = 8192;
// Waking another thread pays from about so many bytes of W.
constexpr int64_t kMinThreadBytes = 64 * 1024;
constexpr int64_t kChunksPerThread = 8;

typedef uint32_t UintLanes __attribute__((vector_size(VL * 4)));

// Memory of the calling thread, kept between calls: for x, for unpacked weights, for pairs of x, for
// x that is rounded.
template <int kUse>
char* kept_memory(size_t bytes) {
  thread_local size_t capacity = 0;
  thread_local std::unique_ptr<char[]> memory;
  if (bytes + kLineBytes > capacity) {
    memory.reset(new char[bytes + kLineBytes]);
    capacity = bytes + kLineBytes;
  }
  char* begin = memory.get();
  return begin + (kLineBytes - intptr_t(begin) % kLineBytes) % kLineBytes;
}

template <int kLines>
void load_lines(const char* p, UintLanes (&words)[kLines]) {
  for (int i = 0; i < kLines; ++i) std::memcpy(&words[i], p + i * kLineBytes, sizeof words[i]);
}

// What is a factor of all scales of a block.
template <class S>
Vec factor(const char* block, int v) {
  return sizeof(S) == 2 ? vload((const float*)block + v * VL) : vset(1.0f);
}

// Where a group's lines and scales are.
template <class S>
struct Group {
  char* lines;
  S* d;

  Group(const Groups& w, const char* block, int64_t g) {
    const int64_t unit = g / w.unit(), in_unit = g % w.unit();
    char* begin = (char*)block + (sizeof(S) == 2) * kLineBytes + unit * w.unit_bytes();
    lines = begin + in_unit * w.lines() * kLineBytes;
    d = (S*)(begin + w.unit() * w.lines() * kLineBytes) + in_unit * kBlockRows;
  }
};

template <class Y>
void write_rows(const GroupsCall& call, int64_t block, int64_t row, int rows,
                const float (*sums)[kBlockRows]) {
  const int64_t first = block * kBlockRows;
  const int64_t columns = std::min<int64_t>(kBlockRows, call.w.n - first);
  for (int r = 0; r < rows; ++r) {
    Y* y = (Y*)call.y + (row + r) * call.y_stride + first;
    for_vectors(columns, [&](int64_t i, auto lanes) {
      Vec v = load(sums[r] + i, lanes);
      if (call.bias) v += load(call.bias + first + i, lanes);
      store(y + i, v, lanes);
    });
  }
}

// Calls multiply(block, part) for all blocks of W in each part of the rows, which threads share.
template <class F>
void for_blocks(const Groups& w, int64_t parts, const F& multiply) {
  const int64_t tasks = w.blocks() * parts, least = divide_up(kMinThreadBytes, w.block_bytes());
  const int64_t chunk = std::max(least, divide_up(tasks, num_threads() * kChunksPerThread));
  parallel_chunks(tasks, chunk, [&](int64_t begin, int64_t end, int64_t) {
    for (int64_t task = begin; task < end; ++task) multiply(task % w.blocks(), task / w.blocks());
  });
}

}  // namespace hotshoe::linear
