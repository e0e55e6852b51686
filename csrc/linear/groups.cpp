// Products with grouped weights: a few rows of x meet the values as they come out of their bits;
// for many rows, blocks of W are unpacked to plain numbers first, which the plain kernels multiply.

#include "linear/groups.h"

#include <algorithm>
#include <memory>

#include "common/parallel.h"
#include "common/rows.h"
#include "common/words.h"
#include "linear/linear.h"

namespace hotshoe::linear {
namespace {

// Rows of x up to which unpacking W costs more than it saves: fewer where pairs of bfloat16 are
// multiplied at once.
#ifdef __AVX512BF16__
constexpr int64_t kMaxDirectNarrowRows = 4;
#else
constexpr int64_t kMaxDirectNarrowRows = 16;
#endif
constexpr int64_t kMaxDirectRows = 16;
// Vectors that hold a line, rows of x that share the unpacking of it, chains of sums for each.
constexpr int kVectors = kBlockRows / VL;
constexpr int kTileRows = VL == kBlockRows ? 4 : 2, kChains = VL == kBlockRows ? 4 : 2;
// Waking another thread pays from about so many bytes of W.
constexpr int64_t kMinThreadBytes = 64 * 1024;
constexpr int64_t kChunksPerThread = 8;
// Unpacked blocks stay near a core until they are multiplied, and are enough to be worth a call.
constexpr int64_t kUnpackedBytes = 2048 * 1024;

typedef uint32_t UintLanes __attribute__((vector_size(VL * 4)));

// Memory of the calling thread, kept between calls; one for x, one for unpacked weights.
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

UintLanes load_line(const char* p) {
  UintLanes words;
  std::memcpy(&words, p, sizeof words);
  return words;
}

template <int kBits>
Vec value(UintLanes words, int i) {
  const UintLanes bits = (words >> uint32_t(kBits * i)) & uint32_t((1u << kBits) - 1u);
  return {(decltype(Vec::v))__builtin_convertvector((IntLanes)bits, FloatLanes)};
}

// x in float, and the sum of each group of it.
struct Inputs {
  const float* x;
  const float* sums;
};

// Sums of kRows rows of x with one block.
template <int kBits, int kRows>
void multiply(const Groups& w, const char* block, Inputs in, float (*out)[kBlockRows]) {
  constexpr int kPerWord = 32 / kBits;
  Vec total[kRows][kVectors];
  for (auto& row : total) std::fill(row, row + kVectors, vzero());
  for (int64_t g = 0; g < w.groups(); ++g) {
    Vec sum[kRows][kVectors][kChains];
    for (auto& row : sum) {
      for (auto& chains : row) std::fill(chains, chains + kChains, vzero());
    }
    const float* x = in.x + g * w.group;
    for (int64_t line = 0; line < w.lines(); ++line, block += kLineBytes, x += kPerWord) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        const UintLanes words = load_line(block + v * VL * 4);
#pragma GCC unroll 8
        for (int i = 0; i < kPerWord; ++i) {
          const Vec q = value<kBits>(words, i);
#pragma GCC unroll 8
          for (int r = 0; r < kRows; ++r) {
            Vec& s = sum[r][v][i % kChains];
            s = vfma(q, vset(x[r * w.k + i]), s);
          }
        }
      }
    }
    const auto* d = (const float*)block;
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const float inputs = in.sums[r * w.groups() + g];
        Vec s = sum[r][v][0];
        for (int c = 1; c < kChains; ++c) s += sum[r][v][c];
        if (w.minima) {
          total[r][v] = vfma(vload(d + kBlockRows + v * VL), vset(inputs), total[r][v]);
        } else {
          s -= vset(float(w.offset) * inputs);
        }
        total[r][v] = vfma(vload(d + v * VL), s, total[r][v]);
      }
    }
    block += (1 + w.minima) * kLineBytes;
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) vstore(out[r] + v * VL, total[r][v]);
  }
}

template <int kBits>
void multiply(int rows, const Groups& w, const char* block, Inputs in, float (*out)[kBlockRows]) {
  switch (rows) {
    case 1: return multiply<kBits, 1>(w, block, in, out);
    case 2: return multiply<kBits, 2>(w, block, in, out);
    case 3: return multiply<kBits, std::min(3, kTileRows)>(w, block, in, out);
    default: return multiply<kBits, kTileRows>(w, block, in, out);
  }
}

Inputs read_inputs(const GroupsCall& call) {
  const Groups& w = call.w;
  auto* x = (float*)kept_memory<0>(size_t(call.m * (w.k + w.groups())) * sizeof(float));
  float* sums = x + call.m * w.k;
  visit_float(int(call.x_dtype), [&](auto type) {
    using X = decltype(type);
    for (int64_t r = 0; r < call.m; ++r) {
      float* row = x + r * w.k;
      convert_row((const X*)call.x + r * call.x_stride, row, w.k);
      for (int64_t g = 0; g < w.groups(); ++g) {
        Vec sum = vzero();
        for_vectors(w.group, [&](int64_t i, auto lanes) { sum += load(row + g * w.group + i, lanes); });
        sums[r * w.groups() + g] = vsum(sum);
      }
    }
  });
  return {x, sums};
}

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

void multiply_directly(const GroupsCall& call) {
  const Groups& w = call.w;
  const Inputs in = read_inputs(call);
  const int64_t least = divide_up(kMinThreadBytes, w.block_bytes());
  const int64_t chunk = std::max(least, divide_up(w.blocks(), num_threads() * kChunksPerThread));
  parallel_chunks(w.blocks(), chunk, [&](int64_t begin, int64_t end, int64_t) {
    for (int64_t block = begin; block < end; ++block) {
      const char* from = (const char*)call.weights + block * w.block_bytes();
      for (int64_t row = 0; row < call.m; row += kTileRows) {
        const int rows = int(std::min<int64_t>(kTileRows, call.m - row));
        float sums[kTileRows][kBlockRows];
        const Inputs these{in.x + row * w.k, in.sums + row * w.groups()};
        if (w.bits == 4) {
          multiply<4>(rows, w, from, these, sums);
        } else {
          multiply<8>(rows, w, from, these, sums);
        }
        visit_float(int(call.y_dtype), [&](auto type) {
          write_rows<decltype(type)>(call, block, row, rows, sums);
        });
      }
    }
  });
}

// The nearest bfloat16, ties away from zero, in the upper half of each word. Weights are finite.
UintLanes rounded(Vec v) { return (UintLanes)v.v + 0x8000u; }

// One block to the plain layout of its type; lines that pad K are zero already.
template <int kBits, bool kNarrow>
void unpack_block(const Groups& w, const char* block, char* to) {
  constexpr int kPerWord = 32 / kBits;
  for (int64_t g = 0; g < w.groups(); ++g, block += w.group_bytes()) {
    const auto* d = (const float*)(block + w.lines() * kLineBytes);
    for (int v = 0; v < kVectors; ++v) {
      const Vec scale = vload(d + v * VL);
      const Vec least = w.minima ? vload(d + kBlockRows + v * VL)
                                 : scale * vset(-float(w.offset));
      for (int64_t line = 0; line < w.lines(); ++line) {
        const UintLanes words = load_line(block + line * kLineBytes + v * VL * 4);
        char* at = to + ((g * w.lines() + line) * kPerWord >> kNarrow) * kLineBytes + v * VL * 4;
#pragma GCC unroll 8
        for (int i = 0; i < kPerWord; i += 1 + kNarrow, at += kLineBytes) {
          const Vec first = vfma(value<kBits>(words, i), scale, least);
          if constexpr (kNarrow) {
            const Vec second = vfma(value<kBits>(words, i + 1), scale, least);
            const UintLanes pair = (rounded(first) >> 16) | (rounded(second) & 0xffff0000u);
            std::memcpy(at, &pair, sizeof pair);
          } else {
            vstore((float*)at, first);
          }
        }
      }
    }
  }
}

void unpack(const GroupsCall& call, int64_t begin, int64_t end, const Layout& layout, char* to) {
  const Groups& w = call.w;
  const bool narrow = call.x_dtype == DType::bf16;
  const auto run = w.bits == 4 ? (narrow ? unpack_block<4, true> : unpack_block<4, false>)
                               : (narrow ? unpack_block<8, true> : unpack_block<8, false>);
  const int64_t used = divide_up(w.k * element_bytes(call.x_dtype), kGroupBytes) * kLineBytes;
  parallel_for(end - begin, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      char* block = to + i * layout.block_bytes;
      std::memset(block + used, 0, size_t(layout.block_bytes - used));
      run(w, (const char*)call.weights + (begin + i) * w.block_bytes(), block);
    }
  });
}

void multiply_unpacked(const GroupsCall& call) {
  const Groups& w = call.w;
  const int64_t block_bytes = Layout(call.x_dtype, kBlockRows, w.k).block_bytes;
  const int64_t step = std::max<int64_t>(kUnpackedBytes * num_threads() / block_bytes, 2);
  char* plain = kept_memory<1>(size_t(std::min(step, w.blocks()) * block_bytes));
  for (int64_t block = 0; block < w.blocks(); block += step) {
    const int64_t end = std::min(block + step, w.blocks()), first = block * kBlockRows;
    const Layout layout(call.x_dtype, std::min(w.n, end * kBlockRows) - first, w.k);
    unpack(call, block, end, layout, plain);
    const int64_t y_bytes = call.y_dtype == DType::f32 ? 4 : 2;
    linear({layout, plain, call.m, call.x_dtype, call.x, call.x_stride,
            call.bias ? call.bias + first : nullptr, call.y_dtype,
            (char*)call.y + first * y_bytes, call.y_stride, 0});
  }
}

}  // namespace

void pack_groups(const Groups& w, void* packed, const GroupRows& rows) {
  if (rows.begin < 0 || rows.count < 0 || rows.begin + rows.count > w.n) {
    throw std::invalid_argument("rows beyond the weight's " + std::to_string(w.n));
  }
  if (w.minima != (rows.m != nullptr)) throw std::invalid_argument("minima are missing, or too many");
  const int per_word = 32 / w.bits;
  parallel_for(rows.count, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = rows.begin + i, lane = row % kBlockRows;
      char* block = (char*)packed + row / kBlockRows * w.block_bytes();
      const uint8_t* from = rows.values + i * w.k;
      for (int64_t g = 0; g < w.groups(); ++g, block += w.group_bytes()) {
        auto* words = (uint32_t*)block + lane;
        for (int64_t line = 0; line < w.lines(); ++line, from += per_word) {
          uint32_t word = 0;
          for (int j = 0; j < per_word; ++j) word |= uint32_t(from[j]) << (w.bits * j);
          words[line * kBlockRows] = word;
        }
        auto* scales = (float*)(block + w.lines() * kLineBytes) + lane;
        scales[0] = rows.d[i * w.groups() + g];
        if (w.minima) scales[kBlockRows] = rows.m[i * w.groups() + g];
      }
    }
  }, kBlockRows);
}

void linear_groups(const GroupsCall& call) {
  if (call.x_dtype != DType::f32 && call.x_dtype != DType::bf16) {
    throw std::invalid_argument("x must be float32 or bfloat16");
  }
  visit_float(int(call.y_dtype), [](auto) {});
  if (call.m <= (call.x_dtype == DType::bf16 ? kMaxDirectNarrowRows : kMaxDirectRows)) {
    multiply_directly(call);
  } else {
    multiply_unpacked(call);
  }
}

}  // namespace hotshoe::linear
