// Kernels of int8 weights for every instruction set but AMX. Sums are exact: none saturates.

#include "linear/tile_template.h"

#if defined(__ARM_FEATURE_MATMUL_INT8)
#include "linear/tile_matrix.h"
#elif defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>
#endif

namespace hotshoe::linear {
namespace {

#ifdef __AVX512VNNI__

// The instruction wants one operand unsigned: x comes with 128 added, which the caller takes
// off again with the weights' row sums.
struct Int8Math {
  using Scalar = int32_t;
  using Sum = __m512i;
  using X = __m512i;
  using W = __m512i;
  static constexpr int kSums = 1;
  static constexpr int kXBytes = 4;
  static __m512i zero() { return _mm512_setzero_si512(); }
  static __m512i load_x(const char* p) { return _mm512_set1_epi32(*(const int*)p); }
  static __m512i load_w(const char* p, int) { return _mm512_loadu_si512(p); }
  static __m512i dot(__m512i sum, __m512i x, __m512i w) { return _mm512_dpbusd_epi32(sum, x, w); }
  static void store(int32_t* p, __m512i sum) { _mm512_storeu_si512(p, sum); }
};
constexpr Form kForm = Form::u8;

#elif defined(__AVX2__)

struct Pair {
  __m256i even, odd;  // int16
};

struct Int8Math {
  using Scalar = int32_t;
  using Sum = __m256i;
  using X = Pair;
  using W = Pair;
  static constexpr int kSums = 2;
  static constexpr int kXBytes = 8;
  static __m256i zero() { return _mm256_setzero_si256(); }
  static Pair load_x(const char* p) {
    return {_mm256_set1_epi32(((const int*)p)[0]), _mm256_set1_epi32(((const int*)p)[1])};
  }
  static Pair load_w(const char* p, int j) {
    const __m256i four = _mm256_loadu_si256((const __m256i*)p + j);
    return {_mm256_srai_epi16(_mm256_slli_epi16(four, 8), 8), _mm256_srai_epi16(four, 8)};
  }
  static __m256i dot(__m256i sum, const Pair& x, const Pair& w) {
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(x.even, w.even));
    return _mm256_add_epi32(sum, _mm256_madd_epi16(x.odd, w.odd));
  }
  static void store(int32_t* p, __m256i sum) { _mm256_storeu_si256((__m256i*)p, sum); }
};
constexpr Form kForm = Form::s16_pairs;

#elif defined(__ARM_FEATURE_DOTPROD)

struct Int8Math {
  using Scalar = int32_t;
  using Sum = int32x4_t;
  using X = int8x16_t;
  using W = int8x16_t;
  static constexpr int kSums = kBlockRows / VL;
  static constexpr int kXBytes = 4;
  static int32x4_t zero() { return vdupq_n_s32(0); }
  static int8x16_t load_x(const char* p) {
    return vreinterpretq_s8_s32(vdupq_n_s32(*(const int32_t*)p));
  }
  static int8x16_t load_w(const char* p, int j) { return vld1q_s8((const int8_t*)p + 16 * j); }
  static int32x4_t dot(int32x4_t sum, int8x16_t x, int8x16_t w) { return vdotq_s32(sum, x, w); }
  static void store(int32_t* p, int32x4_t sum) { vst1q_s32(p, sum); }
};
constexpr Form kForm = Form::s8;

#else

typedef int16_t Shorts __attribute__((vector_size(VL * 4)));

struct Pair {
  Shorts even, odd;
};

struct Int8Math {
  using Scalar = int32_t;
  using Sum = Ints;
  using X = Pair;
  using W = Pair;
  static constexpr int kSums = kBlockRows / VL;
  static constexpr int kXBytes = 8;
  static Ints zero() { return Ints{}; }
  static Pair load_x(const char* p) {
    return {(Shorts)(Ints{} + ((const int32_t*)p)[0]), (Shorts)(Ints{} + ((const int32_t*)p)[1])};
  }
  static Pair load_w(const char* p, int j) {
    Ints fours;
    std::memcpy(&fours, p + j * int(sizeof fours), sizeof fours);
    return {((Shorts)fours << 8) >> 8, (Shorts)fours >> 8};
  }
  // Two products of x in [-127, 127] with int8 fit 16 bits.
  static Ints dot(Ints sum, const Pair& x, const Pair& w) {
    const Ints products = (Ints)(x.even * w.even + x.odd * w.odd);
    return sum + ((products << 16) >> 16) + (products >> 16);
  }
  static void store(int32_t* p, Ints sum) { std::memcpy(p, &sum, sizeof sum); }
};
constexpr Form kForm = Form::s16_pairs;

#endif

#ifdef __ARM_FEATURE_MATMUL_INT8

struct Int8Matrix {
  using Dot = Int8Math;
  using Sum = int32x4_t;
  static int32x4_t multiply(int32x4_t sum, uint8x16_t x, uint8x16_t w) {
    return vmmlaq_s32(sum, vreinterpretq_s8_u8(x), vreinterpretq_s8_u8(w));
  }
};
constexpr Kernel kInt8 = matrix_kernel<Int8Matrix>(kForm, false);

#else
constexpr Kernel kInt8 = register_kernel<Int8Math>(kForm, false, 4);
#endif

}  // namespace

const Kernel& int8_kernel() { return kInt8; }

}  // namespace hotshoe::linear
