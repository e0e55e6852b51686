// How values of grouped weights lie in words, and how they come out of them.
//
// Values are integers, or codes of what a table of int8 holds. Each kind gives floats one by one, from a
// base on, and where the processor multiplies pairs of bfloat16, pairs of those.
#pragma once

#include <algorithm>
#include <type_traits>

#include "linear/group_blocks.h"

#if defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace hotshoe::linear {

// Places in a row's words: kLines of them hold kValues, the first in the lowest bits. Values that are
// kValues / 2 apart are in the same places of both halves of a word: they are a pair.
template <int kBits>
struct Packing {
  static constexpr int kLines = 1, kValues = 32 / kBits;
  static UintLanes pair(const UintLanes* words, int i) {
    return (words[0] >> uint32_t(kBits * i)) & uint32_t(((1u << kBits) - 1u) * 0x10001u);
  }
  static UintLanes bits(const UintLanes* words, int i) {
    return (words[0] >> uint32_t(kBits * i)) & uint32_t((1u << kBits) - 1u);
  }
  static void put(uint32_t* words, int i, uint32_t value) { words[0] |= value << (kBits * i); }
};

// Each half of a word has two values, and four bits of another one: these have their lowest four in
// the first two words, and the highest two in the last.
template <>
struct Packing<6> {
  static constexpr int kLines = 3, kValues = 16;
  static UintLanes pair(const UintLanes* words, int i) {
    if (i < 6) return (words[i / 2] >> uint32_t(i % 2 * 6)) & 0x003f003fu;
    const UintLanes high = (words[2] >> uint32_t(22 - 2 * i)) & 0x00300030u;
    return ((words[i - 6] >> 12u) & 0x000f000fu) | high;
  }
  static UintLanes bits(const UintLanes* words, int i) {
    const UintLanes both = pair(words, i % 8);
    return i < 8 ? both & 0x3fu : both >> 16u;
  }
  static void put(uint32_t* words, int i, uint32_t value) {
    const int place = i % 8, half = i / 8 * 16;
    if (place < 6) {
      words[place / 2] |= value << (half + place % 2 * 6);
    } else {
      words[place - 6] |= (value & 0xfu) << (half + 12);
      words[2] |= (value >> 4) << (half + 26 - 2 * place);
    }
  }
};

inline Vec to_floats(UintLanes words) {
  return {(decltype(Vec::v))__builtin_convertvector((IntLanes)words, FloatLanes)};
}

// Integers. Bits below the eighth are the last ones of a bfloat16 from 128 on: so two halves of words
// are a pair of those without being converted, but for kPairBase.
template <int kBits>
struct Integers : Packing<kBits> {
  static constexpr float kPairBase = 128;
  explicit Integers(const Groups&) {}
  float base() const { return 0; }  // is to be subtracted from each value
  Vec value(const UintLanes* words, int i) const {
    return to_floats(Packing<kBits>::bits(words, i));
  }
#ifdef __AVX512BF16__
  __m512bh pair(const UintLanes* words, int i) const {
    return (__m512bh)(Packing<kBits>::pair(words, i) | 0x43004300u);
  }
#endif
};

// Codes of two or four bits. A table has sixteen values, so that of two bits it has them four times:
// lookups that see three to five bits of a word need no mask.
template <int kBits>
struct Codes : Packing<kBits> {
  static constexpr float kPairBase = 0;
#if defined(__AVX512BW__)

  __m512 floats;

  explicit Codes(const Groups& w)
      : floats(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)w.table)))) {
#ifdef __AVX512BF16__
    pairs = (__m512i)_mm512_cvtne2ps_pbh(floats, floats);  // exactly
#endif
  }
  float base() const { return 0; }
  Vec value(const UintLanes* words, int i) const {
    return {_mm512_permutexvar_ps((__m512i)(words[0] >> uint32_t(kBits * i)), floats)};
  }
#ifdef __AVX512BF16__
  __m512i pairs;
  __m512bh pair(const UintLanes* words, int i) const {
    return (__m512bh)_mm512_permutexvar_epi16((__m512i)(words[0] >> uint32_t(kBits * i)), pairs);
  }
#endif

#elif defined(__AVX2__) || defined(__aarch64__)

  typedef uint8_t Bytes __attribute__((vector_size(VL * 4)));

  int lowest;
  Bytes table;  // of values less the lowest, as bytes are widened without a sign

  explicit Codes(const Groups& w) : lowest(*std::min_element(w.table, w.table + kTableValues)) {
    for (int i = 0; i < VL * 4; ++i) table[i] = uint8_t(w.table[i % kTableValues] - lowest);
#if defined(__AVX2__)
    for (int i = 0; i < VL; ++i) floats[i] = float(w.table[i] - lowest);
#endif
  }
  float base() const { return float(-lowest); }
  // Codes at every (8 / kBits)-th place are bytes once others are masked; one of each four is kept.
  Vec value(const UintLanes* words, int i) const {
#if defined(__AVX2__)
    if constexpr (kBits == 2) {
      return {_mm256_permutevar8x32_ps((__m256)floats, (__m256i)(words[0] >> uint32_t(2 * i)))};
    }
    constexpr UintLanes kFirst = {0, 4, 8, 12, 0, 4, 8, 12};
#else
    constexpr UintLanes kFirst = {0, 4, 8, 12};
#endif
    constexpr int kPlaces = 8 / kBits;
    constexpr uint32_t kMask = ((1u << kBits) - 1u) * 0x01010101u, kNothing = 0x80808000u;
    const UintLanes codes = (words[0] >> uint32_t(kBits * (i % kPlaces))) & kMask;
    const UintLanes kept = (kFirst + uint32_t(i / kPlaces)) | kNothing;
    return to_floats((UintLanes)picked(picked(table, (Bytes)codes), (Bytes)kept));
  }
#if defined(__AVX2__)
  FloatLanes floats;
  static Bytes picked(Bytes from, Bytes places) {
    return (Bytes)_mm256_shuffle_epi8((__m256i)from, (__m256i)places);
  }
#else
  static Bytes picked(Bytes from, Bytes places) {
    return (Bytes)vqtbl1q_u8((uint8x16_t)from, (uint8x16_t)places);
  }
#endif

#else  // lane by lane

  float floats[kTableValues];

  explicit Codes(const Groups& w) { std::copy_n(w.table, kTableValues, floats); }
  float base() const { return 0; }
  Vec value(const UintLanes* words, int i) const {
    const UintLanes codes = Packing<kBits>::bits(words, i);
    FloatLanes found;
    for (int lane = 0; lane < VL; ++lane) found[lane] = floats[codes[lane]];
    return {(decltype(Vec::v))found};
  }

#endif
};

// Calls `f` with the kind of a weight's values as a type.
template <class F>
auto visit_values(const Groups& w, F&& f) {
  if (w.table) {
    return w.bits == 2 ? f(std::type_identity<Codes<2>>{}) : f(std::type_identity<Codes<4>>{});
  }
  switch (w.bits) {
    case 4: return f(std::type_identity<Integers<4>>{});
    case 6: return f(std::type_identity<Integers<6>>{});
    default: return f(std::type_identity<Integers<8>>{});
  }
}

}  // namespace hotshoe::linear
