// Norm of q and k per head, rotary embedding, and the write of k and v into the paged cache.
//
// One pass over the rows of the fused projection: q is rewritten in place, k goes to the cache
// rotated, v as it is. All arithmetic is in float and rounded once; where the cache keeps 8 bits,
// these are rounded from what it would keep of 16 or 32.
// Source: Su et al. 2021, arXiv:2104.09864; Zhang and Sennrich 2019, arXiv:1910.07467.

#include <nanobind/nanobind.h>

#include <algorithm>
#include <stdexcept>

#include "common/narrow.h"
#include "common/parallel.h"
#include "common/rows.h"
#include "record/record.h"
#include "rotary/cache_write.h"

namespace nb = nanobind;

namespace hotshoe {
namespace {

constexpr int kMaxHeadDim = 512;
constexpr int kTokensAtOnce = 16;      // whose keys are written together
constexpr int kHeadsAtOnce = 16;       // whose norms do not wait for each other
constexpr int kMinTokensPerThread = 4;  // below, waking a thread costs more

struct RotaryArgs {
  void* qkv;
  const int32_t* positions;
  const float* cos_sin;  // [max_position, rotary_dim] or null
  void *k_cache, *v_cache;
  const int32_t* slot_mapping;
  const void *q_weight, *k_weight;  // [head_dim] or null: no norm
  int num_tokens, num_heads, num_kv_heads, head_dim, rotary_dim, block_size;
  int64_t qkv_stride, block_stride, head_stride;
  float eps, weight_offset;
  bool interleaved;
  const float* kv_scales = nullptr;  // of all keys and all values, or null
  bool token_scales = false;  // scales [num_kv_heads][block_size] lie behind a block's numbers
};

// One head of one token as floats, normalized while it is read when there is a norm.
template <class T>
struct Head {
  const T* x;
  const T* weight;  // null: no norm
  Vec scale, offset;

  Head(const RotaryArgs& args, const T* x, const void* weight, float scale)
      : x(x),
        weight(static_cast<const T*>(weight)),
        scale(vset(scale)),
        offset(vset(args.weight_offset)) {}

  template <class Lanes>
  Vec read(int64_t i, Lanes lanes) const {
    const Vec value = load(x + i, lanes);
    return weight ? value * scale * (load(weight + i, lanes) + offset) : value;
  }
};

// Rotates (x[i], x[i + half]) by the angles whose cosines and sines are given.
template <class T>
void rotate_halves(const Head<T>& head, T* to, const float* cos, const float* sin, int half) {
  for_vectors(half, [&](int64_t i, auto lanes) {
    const Vec a = head.read(i, lanes), b = head.read(i + half, lanes);
    const Vec c = load(cos + i, lanes), s = load(sin + i, lanes);
    store(to + i, a * c - b * s, lanes);
    store(to + i + half, b * c + a * s, lanes);
  });
}

// Rotates (x[2i], x[2i + 1]).
template <class T>
void rotate_pairs(const Head<T>& head, T* to, const float* cos, const float* sin, int half) {
  alignas(64) float x[kMaxHeadDim];
  for_vectors(2 * half, [&](int64_t i, auto lanes) { store(x + i, head.read(i, lanes), lanes); });
  for (int i = 0; i < half; ++i) {
    const float a = x[2 * i], b = x[2 * i + 1];
    x[2 * i] = a * cos[i] - b * sin[i];
    x[2 * i + 1] = b * cos[i] + a * sin[i];
  }
  convert_row(x, to, 2 * half);
}

// Norm and rotation of one head of one token; `to` may be `from`.
template <class T>
void prepare_head(const RotaryArgs& args, const Head<T>& head, T* to, int token) {
  const int rotated = args.cos_sin ? args.rotary_dim : 0, half = rotated / 2;
  if (rotated) {
    const float* cos = args.cos_sin + int64_t(args.positions[token]) * rotated;
    (args.interleaved ? rotate_pairs<T> : rotate_halves<T>)(head, to, cos, cos + half, half);
  }
  for_vectors(args.head_dim - rotated, [&](int64_t i, auto lanes) {
    store(to + rotated + i, head.read(rotated + i, lanes), lanes);
  });
}

// Of `count` heads, `from_stride` apart; token and its step say whose they are.
template <class T>
void prepare_heads(const RotaryArgs& args, const T* from, int64_t from_stride, T* to, int count,
                   const void* weight, int token, int token_step) {
  for (int first = 0; first < count; first += kHeadsAtOnce) {
    const int end = std::min(first + kHeadsAtOnce, count);
    float scales[kHeadsAtOnce];
    for (int i = first; i < end && weight; ++i) {
      scales[i - first] = inverse_rms(from + i * from_stride, args.head_dim, args.eps);
    }
    for (int i = first; i < end; ++i) {
      const Head<T> head(args, from + i * from_stride, weight, weight ? scales[i - first] : 1.0f);
      prepare_head(args, head, to + int64_t(i) * args.head_dim, token + i * token_step);
    }
  }
}

// Tokens [begin, begin + count) whose slots follow each other within one block.
struct Run {
  int begin, count;
};

Run next_run(const RotaryArgs& args, int token, int end) {
  const int slot = args.slot_mapping[token];
  int count = 1;
  while (token + count < end && count < kTokensAtOnce &&
         args.slot_mapping[token + count] == slot + count &&
         (slot + count) % args.block_size != 0) {
    ++count;
  }
  return {token, count};
}

// Asks for the lines of the cache that a few tokens from `slot` of a block on will be written to:
// processors foresee those of many tokens alone.
template <class S>
void fetch_run(const RotaryArgs& args, const S* k_block, const S* v_block, int slot, int count) {
  constexpr int p = kCachePack<S>, kLine = 64 / sizeof(S);
  const int dim = args.head_dim;
  for (int at = slot * p; at < args.block_size * dim; at += args.block_size * p) {
    for (int e = 0; e < count * p; e += kLine) __builtin_prefetch(k_block + at + e, 1);
  }
  const int end = (slot + count + p - 1) / p * p * dim;
  for (int at = slot / p * p * dim; at < end; at += kLine) __builtin_prefetch(v_block + at, 1);
}

// Makes 8 bits of one head's rows, `stride` apart, and of their scales what the cache keeps.
template <class T, class S>
void narrow_rows(const RotaryArgs& args, const T* rows, int64_t stride, int count,
                 const float* given, S* to, float* scales) {
  for (int t = 0; t < count; ++t, rows += stride, to += args.head_dim) {
    float scale = given ? *given : 1.0f;
    if (args.token_scales) scales[t] = scale = narrow_scale<S>(rows, args.head_dim);
    narrow_row(rows, args.head_dim, scale, to);
  }
}

// The keys and values of one head, as the cache keeps them.
template <class T, class S>
void write_head(const RotaryArgs& args, const Run& run, int head, const T* keys, const T* v) {
  const int slot = args.slot_mapping[run.begin], dim = args.head_dim;
  const int offset = slot % args.block_size;
  const int64_t block = slot / args.block_size * args.block_stride;
  S* const k_block = static_cast<S*>(args.k_cache) + block;
  S* const v_block = static_cast<S*>(args.v_cache) + block;
  const int64_t at = head * args.head_stride;
  if (run.count < kTokensAtOnce && head + 1 < args.num_kv_heads) {
    const int64_t next = at + args.head_stride;
    fetch_run(args, k_block + next, v_block + next, offset, run.count);
  }
  if constexpr (kIsNarrow<S>) {
    alignas(64) S codes[kTokensAtOnce * kMaxHeadDim];
    const auto scales = [&](S* of) {
      return reinterpret_cast<float*>(of + args.num_kv_heads * args.head_stride) +
             int64_t(head) * args.block_size + offset;
    };
    narrow_rows(args, keys, dim, run.count, args.kv_scales, codes, scales(k_block));
    write_keys(codes, run.count, dim, args.block_size, offset, k_block + at);
    const float* given = args.kv_scales ? args.kv_scales + 1 : nullptr;
    narrow_rows(args, v, args.qkv_stride, run.count, given, codes, scales(v_block));
    write_values(codes, dim, run.count, dim, offset, v_block + at);
  } else {
    write_keys(keys, run.count, dim, args.block_size, offset, k_block + at);
    write_values(v, args.qkv_stride, run.count, dim, offset, v_block + at);
  }
}

template <class T, class S>
void write_run(const RotaryArgs& args, const Run& run) {
  alignas(64) T keys[kTokensAtOnce * kMaxHeadDim];
  if (args.slot_mapping[run.begin] < 0) return;
  const int dim = args.head_dim;
  const T* row = static_cast<const T*>(args.qkv) + run.begin * args.qkv_stride;
  const T* k = row + int64_t(args.num_heads) * dim;
  const T* v = k + int64_t(args.num_kv_heads) * dim;
  for (int head = 0; head < args.num_kv_heads; ++head, k += dim, v += dim) {
    prepare_heads(args, k, args.qkv_stride, keys, run.count, args.k_weight, run.begin, 1);
    write_head<T, S>(args, run, head, keys, v);
  }
}

template <class T, class S>
void process_tokens(const RotaryArgs& args, int begin, int end) {
  const bool q_changes = args.q_weight || args.cos_sin;
  for (int token = begin; token < end && q_changes; ++token) {
    T* q = static_cast<T*>(args.qkv) + token * args.qkv_stride;
    prepare_heads(args, q, args.head_dim, q, args.num_heads, args.q_weight, token, 0);
  }
  for (int token = begin; token < end;) {
    const Run run = next_run(args, token, end);
    write_run<T, S>(args, run);
    token += run.count;
  }
}

void check(const RotaryArgs& args) {
  const bool dim = args.head_dim > 0 && args.head_dim <= kMaxHeadDim && args.head_dim % 2 == 0;
  if (!dim) throw std::invalid_argument("head_dim must be even and at most 512");
  if (args.rotary_dim < 0 || args.rotary_dim > args.head_dim || args.rotary_dim % 2) {
    throw std::invalid_argument("rotary_dim must be even and at most head_dim");
  }
  if (args.block_size < 2 || args.block_size % 2) {
    throw std::invalid_argument("block_size must be even");
  }
}

void rotary_and_cache(const RotaryArgs& args, int dtype, int kv_dtype) {
  check(args);
  visit_float(dtype, [&](auto tag) {
    using T = decltype(tag);
    visit_stored<T>(dtype, kv_dtype, [&](auto stored) {
      parallel_for(
          args.num_tokens,
          [&](int64_t begin, int64_t end) {
            process_tokens<T, decltype(stored)>(args, int(begin), int(end));
          },
          kMinTokensPerThread);
    });
  });
}

// With the arguments of `stored_as` behind the others.
template <class... Stored>
void prepare(uintptr_t qkv, uintptr_t positions, uintptr_t cos_sin, uintptr_t k_cache,
             uintptr_t v_cache, uintptr_t slot_mapping, uintptr_t q_weight, uintptr_t k_weight,
             int num_tokens, int num_heads, int num_kv_heads, int head_dim, int rotary_dim,
             int block_size, int64_t qkv_stride, int64_t block_stride, int64_t head_stride,
             float eps, float weight_offset, bool interleaved, int dtype, Stored... stored) {
  RotaryArgs args{
      reinterpret_cast<void*>(qkv), reinterpret_cast<const int32_t*>(positions),
      reinterpret_cast<const float*>(cos_sin), reinterpret_cast<void*>(k_cache),
      reinterpret_cast<void*>(v_cache), reinterpret_cast<const int32_t*>(slot_mapping),
      reinterpret_cast<const void*>(q_weight), reinterpret_cast<const void*>(k_weight),
      num_tokens, num_heads, num_kv_heads, head_dim, rotary_dim, block_size, qkv_stride,
      block_stride, head_stride, eps, weight_offset, interleaved};
  const int kv_dtype = stored_as(args, dtype, stored...);
  rotary_and_cache(args, dtype, kv_dtype);
}

}  // namespace

void bind_rotary(nb::module_& m) {
  m.def(
      "rotary_and_cache", recorded(&prepare<>), nb::call_guard<nb::gil_scoped_release>(),
      "rotary_and_cache(qkv, positions, cos_sin, k_cache, v_cache, slot_mapping, q_weight,\n"
      "    k_weight, num_tokens, num_heads, num_kv_heads, head_dim, rotary_dim, block_size,\n"
      "    qkv_stride, block_stride, head_stride, eps, weight_offset, interleaved, dtype)\n\n"
      "Normalize and rotate q in place, and write k (likewise prepared) and v to the cache.\n\n"
      "Addresses: qkv [num_tokens, (num_heads + 2 * num_kv_heads) * head_dim] with a row stride;\n"
      "positions and slot_mapping [num_tokens] int32, slot = block * block_size + offset, -1\n"
      "writes nothing; cos_sin [max_position, rotary_dim] float32, cosines then sines, or 0 for\n"
      "no rotation; q_weight, k_weight [head_dim] or 0 for no norm, effective weight\n"
      "weight_offset + weight; caches as paged_attention reads them. The rotation acts on the\n"
      "first rotary_dim channels, as pairs (2i, 2i+1) when interleaved, else (i, i +\n"
      "rotary_dim/2). The k part of qkv is left as it was.\n\n"
      "Raises:\n    ValueError: A size is out of range.");
  m.def(
      "rotary_and_cache_8bit", recorded(&prepare<int, uintptr_t, bool>),
      nb::call_guard<nb::gil_scoped_release>(),
      "rotary_and_cache_8bit(..., dtype, kv_dtype, kv_scales, token_scales)\n\n"
      "As rotary_and_cache, to a cache as paged_attention_8bit reads it: the nearest numbers,\n"
      "ties to even, of k and v over their scales. Those of kv_scales are given; with\n"
      "token_scales they are the largest magnitude of a token's head over the type's, which are\n"
      "written, too.\n\n"
      "Raises:\n    ValueError: As rotary_and_cache, or kv_dtype is none of these.");
}

}  // namespace hotshoe
