// Kernels of int8 weights for every instruction set but AMX. Sums are exact: none saturates.

#include "common/simd.h"
#include "linear/tile_template.h"

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
constexpr Kernel kInt8 = {Form::u8, 14, 2, false, 4, dispatch_tile<Int8Math, 14, 2>, nullptr};

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
constexpr Kernel kInt8 = {Form::s16_pairs, 5, 1, false, 4, dispatch_tile<Int8Math, 5, 1>, nullptr};

#else

struct Four {
  Ints k[4];
};

struct Int8Math {
  using Scalar = int32_t;
  using Sum = Ints;
  using X = Four;
  using W = Four;
  static constexpr int kSums = kBlockRows / VL;
  static constexpr int kXBytes = 8;
  static Ints zero() { return Ints{}; }
  static Four load_x(const char* p) {
    const auto* x = (const int16_t*)p;
    return {{Ints{} + x[0], Ints{} + x[2], Ints{} + x[1], Ints{} + x[3]}};
  }
  static Four load_w(const char* p, int j) {
    Ints four;
    std::memcpy(&four, p + j * int(sizeof four), sizeof four);
    return {{(four << 24) >> 24, (four << 16) >> 24, (four << 8) >> 24, four >> 24}};
  }
  static Ints dot(Ints sum, const Four& x, const Four& w) {
    for (int i = 0; i < 4; ++i) sum += x.k[i] * w.k[i];
    return sum;
  }
  static void store(int32_t* p, Ints sum) { std::memcpy(p, &sum, sizeof sum); }
};
constexpr Kernel kInt8 = {Form::s16_pairs, 4, 1, false, 4, dispatch_tile<Int8Math, 4, 1>, nullptr};

#endif

}  // namespace

const Kernel& int8_kernel() { return kInt8; }

}  // namespace hotshoe::linear
