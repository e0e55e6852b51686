// Multiplication of packed operands: how a vector of the KV cache meets one query value.
//
// The cache stores, for each lane (a key or a channel), `pack` neighbors along the contracted
// axis together. `Dot<A, S>` loads VL lanes of such groups, kept as S, and adds their products with a
// broadcast group of the other operand, of elements A, to float accumulators. Used by tiles.h.
#pragma once

#include <type_traits>

#include "common/narrow.h"
#include "common/words.h"
#include "linear/amx.h"

namespace hotshoe {

namespace detail {
inline Vec low_half(IntLanes words, bf16) { return from_words(words << 16); }

inline Vec low_half(IntLanes words, f16) {
  const IntLanes magnitude = words & 0x7fff;
  // The exponent bias differs by 112; multiplying by 2^112 also makes subnormals exact.
  const IntLanes finite =
      (IntLanes)((FloatLanes)(magnitude << 13) * bits_float(0x77800000u));
  const IntLanes special = (magnitude << 13) | 0x7f800000;
  const IntLanes is_special = magnitude >= 0x7c00;
  return from_words(((words & 0x8000) << 16) | (is_special & special) | (~is_special & finite));
}

inline Vec high_half(IntLanes words, bf16) { return from_words(words & int32_t(0xffff0000)); }
inline Vec high_half(IntLanes words, f16 tag) { return low_half(words >> 16, tag); }
}  // namespace detail

#if defined(HOTSHOE_AMX) || defined(__AVX512BF16__)
constexpr bool kDotsTakeBf16 = true;
#else
constexpr bool kDotsTakeBf16 = false;
#endif

// What queries and weights of softmax are multiplied as.
template <class T>
using Operand = std::conditional_t<kDotsTakeBf16 && std::is_same_v<T, bf16>, bf16, float>;

// What the cache keeps as S, of 16 bits or 8: pairs are widened to two floats.
template <class A, class S>
struct Dot {
  static constexpr int pack = 2;
  struct Pair {
    Vec even, odd;
  };
  using B = Pair;
  static B load(const S* p) {
    if constexpr (kIsNarrow<S>) return widen(load_pairs(p));
    return widen(load_words(p));
  }
  static B load_n(const S* p, int lanes) {
    if constexpr (kIsNarrow<S>) return widen(load_pairs_n(p, lanes));
    return widen(load_words_n(p, lanes));
  }
  static Pair broadcast(const A* a) { return {vset(to_float(a[0])), vset(to_float(a[1]))}; }
  static Vec multiply_add(Pair a, B b, Vec sum) {
    return vfma(a.odd, b.odd, vfma(a.even, b.even, sum));
  }

 private:
  using Half = std::conditional_t<std::is_same_v<S, f16>, f16, bf16>;
  static B widen(IntLanes words) {
    return {detail::low_half(words, Half{}), detail::high_half(words, Half{})};
  }
};

template <>
struct Dot<float, float> {
  static constexpr int pack = 1;
  using B = Vec;
  static B load(const float* p) { return vload(p); }
  static B load_n(const float* p, int lanes) { return vload_n(p, lanes); }
  static Vec broadcast(const float* a) { return vset(*a); }
  static Vec multiply_add(Vec a, B b, Vec sum) { return vfma(a, b, sum); }
};

#ifdef __AVX512BF16__
template <class S>
struct Dot<bf16, S> {
  static constexpr int pack = 2;
  using B = __m512bh;
  static B load(const S* p) {
    if constexpr (kIsNarrow<S>) return (__m512bh)load_pairs(p);
    return (__m512bh)_mm512_loadu_si512(p);
  }
  static B load_n(const S* p, int lanes) {
    if constexpr (kIsNarrow<S>) return (__m512bh)load_pairs_n(p, lanes);
    return (__m512bh)_mm512_maskz_loadu_epi32(first_lanes(lanes), p);
  }
  static B broadcast(const bf16* a) {
    int32_t pair;
    std::memcpy(&pair, a, 4);
    return (__m512bh)_mm512_set1_epi32(pair);
  }
  static Vec multiply_add(B a, B b, Vec sum) { return {_mm512_dpbf16_ps(sum.v, a, b)}; }
};
#endif

}  // namespace hotshoe
