// How one attention call is cut into work: units of (request, query tile, key range).
//
// Long key ranges are split when otherwise too few threads would be busy; the splits of one query
// tile form a group whose partial results are merged by whoever finishes last. Each unit stands
// for all kv heads. Holds no tensors and no arithmetic of attention itself.
#pragma once

#include <cstdint>
#include <vector>

#include "linear/amx.h"

namespace hotshoe {

struct AttentionArgs {
  const void *q, *k_cache, *v_cache;
  void* out;
  const int32_t *block_table, *query_start_loc, *seq_lens;
  const float* sinks;  // [num_heads] or null
  int num_reqs, num_heads, num_kv_heads, head_dim, block_size, max_blocks;
  int64_t q_stride, out_stride, table_stride, block_stride, head_stride;
  float scale;
  int window;     // 0: none
  float softcap;  // 0: none
};

struct Unit {
  int request;
  int first_token, num_tokens;  // of the request's tokens in this step
  int key_begin, key_end;
  int group;  // -1: the only unit of its query tile
  int split;
};

struct Group {
  int num_splits, rows;
  int64_t partial;  // floats before its partial results; [kv head][split][row][head_dim + 2]
};

struct Plan {
  std::vector<Unit> units;  // longest first
  std::vector<Group> groups;
  int64_t partial_floats;
};

// Query rows (tokens times heads per kv head) that share one pass over the keys.
#ifdef HOTSHOE_AMX
constexpr int kQueryRows = 64;
#else
constexpr int kQueryRows = 48;
#endif

// Fills `plan`, reusing its memory.
//
// Throws std::invalid_argument when a request is longer than its block table or shorter than
// its own queries.
void make_plan(const AttentionArgs& args, int threads, Plan& plan);

}  // namespace hotshoe
