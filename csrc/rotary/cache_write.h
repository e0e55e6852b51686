// Writes keys and values of consecutive tokens into a block of the paged cache.
//
// The layout is the one that attention.cpp reads: K [head_dim / p][block_size][p] and
// V [block_size / p][head_dim][p] for one block and kv head, p = 1 for float, else 2.
// Only the elements of the given tokens are stored to, because another thread may be writing
// the other token of a group.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

namespace hotshoe {

template <class T>
constexpr int kCachePack = sizeof(T) == 4 ? 1 : 2;

// Two elements of 16 bits or 8.
template <class T>
using Pair = std::conditional_t<sizeof(T) == 2, uint32_t, uint16_t>;

// Channels of a key that the cache keeps together.
template <class T>
using KeyGroup = std::conditional_t<kCachePack<T> == 2, Pair<T>, T>;

// rows: [count][head_dim]; block: the K of one block and head; slot: the first token's in it.
template <class T>
void write_keys(const T* rows, int count, int head_dim, int block_size, int slot, T* block) {
  const auto* from = reinterpret_cast<const KeyGroup<T>*>(rows);
  auto* to = reinterpret_cast<KeyGroup<T>*>(block) + slot;
  const int groups = head_dim / kCachePack<T>;
  for (int g = 0; g < groups; ++g) {
    for (int t = 0; t < count; ++t) to[int64_t(g) * block_size + t] = from[t * groups + g];
  }
}

// One element of each row in turn; as words, which compilers do a vector at a time.
template <class T>
void interleave(const T* first, const T* second, int n, T* to) {
  using Word = std::conditional_t<sizeof(T) == 2, uint16_t, uint8_t>;
  const auto* a = reinterpret_cast<const Word*>(first);
  const auto* b = reinterpret_cast<const Word*>(second);
  auto* pairs = reinterpret_cast<Pair<T>*>(to);
  for (int i = 0; i < n; ++i) pairs[i] = Pair<T>(a[i] | uint32_t(b[i]) << 8 * sizeof(T));
}

// rows: `count` tokens `row_stride` apart; block: the V of one block and head.
template <class T>
void write_values(const T* rows, int64_t row_stride, int count, int head_dim, int slot,
                  T* block) {
  constexpr int p = kCachePack<T>;
  for (int t = 0; t < count;) {
    const T* row = rows + t * row_stride;
    const int inner = (slot + t) % p;
    T* to = block + int64_t(slot + t) / p * p * head_dim;
    if constexpr (p == 2) {
      if (inner == 0 && t + 1 < count) {
        interleave(row, row + row_stride, head_dim, to);
        t += 2;
        continue;
      }
    }
    for (int d = 0; d < head_dim; ++d) to[d * p + inner] = row[d];
    ++t;
  }
}

}  // namespace hotshoe
