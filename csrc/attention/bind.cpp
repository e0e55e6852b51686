// Python functions of attention.

#include <nanobind/nanobind.h>

#include "attention/plan.h"
#include "common/narrow.h"
#include "record/record.h"

namespace nb = nanobind;

namespace hotshoe {
namespace {

template <class T>
T* at(uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

// What a token sees beside earlier tokens, as numbers and addresses; see AttentionArgs.
struct Sight {
  int ahead = 0;
  uintptr_t num_nodes = 0, lines = 0;
  uintptr_t bias = 0;
  int bias_span = 0;
  uintptr_t num_keys = 0;
  int64_t bias_stride = 0;
};

// With the arguments of `stored_as` behind the others.
template <class... Stored>
void any_attention(const Sight& sight, uintptr_t out, uintptr_t q, uintptr_t k_cache,
                   uintptr_t v_cache, uintptr_t block_table, uintptr_t query_start_loc,
                   uintptr_t seq_lens, uintptr_t sinks, uintptr_t slopes, int num_reqs,
                   int num_heads, int num_kv_heads, int head_dim, int block_size, int max_blocks,
                   int64_t out_stride, int64_t q_stride, int64_t block_stride,
                   int64_t head_stride, int64_t table_stride, float scale, int window,
                   float softcap, int dtype, Stored... stored) {
  AttentionArgs args{at<const void>(q), at<const void>(k_cache), at<const void>(v_cache),
                     at<void>(out), at<const int32_t>(block_table),
                     at<const int32_t>(query_start_loc), at<const int32_t>(seq_lens),
                     at<const float>(sinks), at<const float>(slopes),
                     at<const int32_t>(sight.num_nodes), at<const uint64_t>(sight.lines), num_reqs,
                     num_heads, num_kv_heads, head_dim, block_size, max_blocks, q_stride,
                     out_stride, table_stride, block_stride, head_stride, scale, window, softcap,
                     sight.ahead, at<const float>(sight.bias), sight.bias_span,
                     sight.bias_stride, at<const int32_t>(sight.num_keys)};
  attend(args, dtype, stored_as(args, dtype, stored...));
}

// Binds the kernel for tokens that see no later ones.
template <class... A>
auto causal(void (*kernel)(const Sight&, A...)) {
  static auto* const all = kernel;
  return recorded(+[](A... arguments) { all({}, arguments...); });
}

// Binds it for steps with trees.
template <class... A>
auto with_trees(void (*kernel)(const Sight&, A...)) {
  static auto* const all = kernel;
  return recorded(+[](uintptr_t num_nodes, uintptr_t lines, A... arguments) {
    all({.num_nodes = num_nodes, .lines = lines}, arguments...);
  });
}

// Binds it for tokens with biases of their own.
template <class... A>
auto with_biases(void (*kernel)(const Sight&, A...)) {
  static auto* const all = kernel;
  return recorded(+[](uintptr_t bias, int bias_span, int64_t bias_stride, A... arguments) {
    all({.bias = bias, .bias_span = bias_span, .bias_stride = bias_stride}, arguments...);
  });
}

// Binds it for tokens that see later ones.
template <class... A>
auto both_ways(void (*kernel)(const Sight&, A...)) {
  static auto* const all = kernel;
  return recorded(
      +[](int ahead, uintptr_t bias, int bias_span, uintptr_t num_keys, A... arguments) {
        all({ahead, 0, 0, bias, bias_span, num_keys}, arguments...);
      });
}

}  // namespace

void bind_attention(nb::module_& m) {
  const auto plain = &any_attention<>;
  const auto narrow = &any_attention<int, uintptr_t, bool>;
  const auto unlocked = nb::call_guard<nb::gil_scoped_release>();
  m.def(
      "paged_attention", causal(plain), unlocked,
      "paged_attention(out, q, k_cache, v_cache, block_table, query_start_loc, seq_lens, sinks,\n"
      "    slopes, num_reqs, num_heads, num_kv_heads, head_dim, block_size, max_blocks,\n"
      "    out_stride, q_stride, block_stride, head_stride, table_stride, scale, window, softcap,\n"
      "    dtype)\n\n"
      "Causal attention of every query token over its request's cached keys and values.\n\n"
      "Addresses: out, q [num_tokens, num_heads, head_dim] with token strides; k_cache, v_cache\n"
      "with strides per block and kv head, per head K [head_dim/p][block_size][p] and\n"
      "V [block_size/p][head_dim][p] with p = 1 for float32, else 2; block_table\n"
      "[num_reqs, max_blocks] int32 with a row stride; query_start_loc [num_reqs + 1] int32;\n"
      "seq_lens [num_reqs] int32, this step's tokens included; sinks [num_heads] float32 or 0;\n"
      "slopes [num_heads] float32 or 0: what logits fall by for each token of distance.\n"
      "window 0 and softcap 0 mean none. Strides count elements. Requests without queries and\n"
      "output rows of no request are left alone.\n\n"
      "Raises:\n    ValueError: A size is out of range, or a request outgrows its block table.");
  m.def(
      "paged_attention_8bit", causal(narrow), unlocked,
      "paged_attention_8bit(..., dtype, kv_dtype, kv_scales, token_scales)\n\n"
      "As paged_attention, over a cache of 8 bits: kv_dtype 3 int8, 4 float8_e4m3fn, 5\n"
      "float8_e5m2. Its numbers are multiplied by kv_scales [2] float32, of keys and of values,\n"
      "unless that is 0; with token_scales by scales [num_kv_heads, block_size] float32 behind\n"
      "the numbers of each block.\n\n"
      "Raises:\n    ValueError: As paged_attention, or kv_dtype is none of these.");
  const char* const trees =
      "tree_attention(num_nodes, lines, out, ...)\n\n"
      "As paged_attention with the same end of its name. Addresses: num_nodes [num_reqs] int32,\n"
      "last tokens that are nodes of a tree; lines [num_tokens] int64, whose bits name the nodes\n"
      "that a token sees.";
  m.def("tree_attention", with_trees(plain), unlocked, trees);
  m.def("tree_attention_8bit", with_trees(narrow), unlocked, trees);
  const char* const biases =
      "relative_attention(bias, bias_span, bias_stride, out, ...)\n\n"
      "As paged_attention with the same end of its name. Address: bias [num_tokens, num_heads,\n"
      "bias_span + 1] float32, tokens bias_stride apart, added to a token's logits: the last number\n"
      "for itself, the one before for the token before, the first for all that are bias_span or\n"
      "more before.";
  m.def("relative_attention", with_biases(plain), unlocked, biases);
  m.def("relative_attention_8bit", with_biases(narrow), unlocked, biases);
  m.def("packed_attention", both_ways(plain), unlocked,
        "packed_attention(ahead, bias, bias_span, num_keys, out, ...)\n\n"
        "As paged_attention, but a token sees so many later ones of its request as well. Addresses:\n"
        "bias [num_heads, 2 * bias_span + 1] float32 or 0, added to logits by the distance of a key\n"
        "behind its query, that of the last to farther ones; num_keys [num_reqs] int32 or 0, leading\n"
        "tokens of a request that are seen.");
}

}  // namespace hotshoe
