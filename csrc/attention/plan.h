// How one attention call is cut into work: units of (queries, key range).
//
// Long key ranges are split when otherwise too few threads would be busy, and requests that decode
// behind the same cached blocks pass over these together: a query's partial results are merged by
// whoever finishes last. Each unit stands for all kv heads; a task is a unit on some of them. Holds
// no tensors and no arithmetic of attention itself.
#pragma once

#include <cstdint>
#include <vector>

#include "linear/amx.h"

namespace hotshoe {

struct AttentionArgs {
  const void *q, *k_cache, *v_cache;
  void* out;
  const int32_t *block_table, *query_start_loc, *seq_lens;
  const float *sinks, *slopes;  // [num_heads] or null
  const int32_t* num_nodes;     // [num_reqs] last tokens that are nodes of a tree, or null
  const uint64_t* lines;        // [num_tokens] which nodes of its request a token sees, by bits
  int num_reqs, num_heads, num_kv_heads, head_dim, block_size, max_blocks;
  int64_t q_stride, out_stride, table_stride, block_stride, head_stride;
  float scale;
  int window;     // 0: none
  float softcap;  // 0: none
  int ahead = 0;  // later tokens of its request that a token sees
  const float* bias = nullptr;  // [num_heads][2 * bias_span + 1] by distance, or null
  int bias_span = 0;
  int64_t bias_stride = 0;  // where each token has a bias [num_heads][bias_span + 1] of its own
  const int32_t* num_keys = nullptr;  // [num_reqs] leading tokens that are seen, or null
  const float* kv_scales = nullptr;  // of all keys and all values, or null
  bool token_scales = false;         // scales [num_kv_heads][block_size] lie behind a block's numbers
};

// One token of a request.
struct Query {
  int64_t token;  // of the step
  int position;   // in its request
  int num_splits = 0;
  int counter = 0;      // of the splits that are unfinished, where there are several
  int64_t partial = 0;  // floats before their results: [kv head][split][row][head_dim + 2]
};

struct Unit {
  int request;                   // whose block table leads to the keys
  int first_query, num_queries;  // of the plan's
  int key_begin, key_end;
  int split;
  int task_heads = 1;  // kv heads of a task
};

struct Task {
  int unit, first_head, num_heads;
};

struct Plan {
  std::vector<Unit> units;  // longest tasks first
  std::vector<Task> tasks;
  std::vector<Query> queries;
  int num_counters;
  int64_t partial_floats;
  std::vector<int> decoding;  // scratch: requests that may share keys
  std::vector<char> added;    // scratch: requests that have their units
};

// Query rows (tokens times heads per kv head) that share one pass over the keys.
#ifdef HOTSHOE_AMX
constexpr int kQueryRows = 64;
#else
constexpr int kQueryRows = 48;
#endif

// Up to so many rows, a pass over the keys takes as long as reading them. Then a task takes several
// heads, whose keys lie side by side in a block: memory gives long runs faster.
constexpr int kReadingRows = 8;

// Fills `plan`, reusing its memory.
//
// Throws std::invalid_argument when a size is out of range, or when a request is longer than its
// block table or shorter than its own queries.
void make_plan(const AttentionArgs& args, int threads, Plan& plan);

// Attends, as planned (attention.cpp). Types of queries and results, and of the cache, as codes.
void attend(const AttentionArgs& args, int dtype, int kv_dtype);

}  // namespace hotshoe
