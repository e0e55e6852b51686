// The lanes of a vector as 32-bit words, over the compiler's own vector extension (GCC, Clang).
//
// For kernels that look at bits: packed 16-bit pairs, float ordering, masks. Comparisons give
// lanes of all ones or zeros.
#pragma once

#include "common/simd.h"

namespace hotshoe {

typedef float FloatLanes __attribute__((vector_size(VL * 4)));
typedef int32_t IntLanes __attribute__((vector_size(VL * 4)));

inline Vec from_words(IntLanes words) { return {(decltype(Vec::v))words}; }
inline IntLanes to_words(Vec v) { return (IntLanes)v.v; }

inline IntLanes load_words(const void* p) {
  IntLanes words;
  std::memcpy(&words, p, sizeof words);
  return words;
}

// The first n lanes (0 <= n <= VL); the others are zero.
inline IntLanes load_words_n(const void* p, int n) {
  IntLanes words{};
  std::memcpy(&words, p, size_t(n) * 4);
  return words;
}

// The nearest integers, ties to even; any where v is NaN or beyond int32.
inline IntLanes nearest_words(Vec v) { return (IntLanes)vnearest(v); }

// v where a >= b, else 0; 0 where either is NaN.
inline Vec where_not_below(Vec a, Vec b, Vec v) {
  return from_words(((FloatLanes)a.v >= (FloatLanes)b.v) & to_words(v));
}

}  // namespace hotshoe
