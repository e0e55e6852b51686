#include "attention/plan.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace hotshoe {
namespace {

// Units per thread at which uneven lengths no longer matter: the longest is a quarter of a share.
constexpr int64_t kUnitsPerThread = 4;
// Splitting below this many keys costs more than it gains.
constexpr int kMinSplitKeys = 256;
// What a pass over the keys costs beside its rows, in rows: reading the cache.
constexpr int64_t kPassCost = 8;

struct Planner {
  const AttentionArgs& args;
  Plan& plan;
  const int group_size = args.num_heads / args.num_kv_heads;
  const int tile_tokens = std::max(1, kQueryRows / group_size);

  int64_t cost(const Unit& unit) const {
    const int64_t rows = int64_t(unit.num_tokens) * group_size;
    return (unit.key_end - unit.key_begin) * (rows + kPassCost);
  }

  void add_request(int request) {
    const int begin = args.query_start_loc[request], end = args.query_start_loc[request + 1];
    const int tokens = end - begin, length = args.seq_lens[request];
    if (tokens <= 0) return;
    const int64_t capacity = int64_t(args.max_blocks) * args.block_size;
    if (length < tokens || length > capacity) {
      throw std::invalid_argument("request " + std::to_string(request) + " has " +
                                  std::to_string(tokens) + " queries, length " +
                                  std::to_string(length) + " and room for " +
                                  std::to_string(capacity) + " tokens");
    }
    for (int first = 0; first < tokens; first += tile_tokens) {
      const int count = std::min(tile_tokens, tokens - first);
      const int position = length - tokens + first;
      int key_begin = args.window > 0 ? std::max(0, position - args.window + 1) : 0;
      key_begin -= key_begin % args.block_size;
      plan.units.push_back({request, first, count, key_begin, position + count, -1, 0});
    }
  }

  void split(size_t index, int64_t limit) {
    const Unit whole = plan.units[index];
    const int keys = whole.key_end - whole.key_begin;
    const int64_t wanted = (cost(whole) + limit - 1) / limit;
    const int parts = int(std::min<int64_t>(wanted, keys / kMinSplitKeys));
    if (parts < 2) return;
    const int unit_keys = std::max(args.block_size, 16);  // keeps column vectors within a block
    const int step = ((keys + parts - 1) / parts + unit_keys - 1) / unit_keys * unit_keys;
    const int rows = whole.num_tokens * group_size;
    const int group = int(plan.groups.size());
    int split = 0;
    for (int begin = whole.key_begin; begin < whole.key_end; begin += step, ++split) {
      const Unit part{whole.request, whole.first_token,
                      whole.num_tokens, begin,
                      std::min(begin + step, whole.key_end), group,
                      split};
      if (split == 0) {
        plan.units[index] = part;
      } else {
        plan.units.push_back(part);
      }
    }
    plan.groups.push_back({split, rows, plan.partial_floats});
    plan.partial_floats += int64_t(args.num_kv_heads) * split * rows * (args.head_dim + 2);
  }
};

}  // namespace

void make_plan(const AttentionArgs& args, int threads, Plan& plan) {
  plan.units.clear();
  plan.groups.clear();
  plan.partial_floats = 0;
  Planner planner{args, plan};
  for (int request = 0; request < args.num_reqs; ++request) planner.add_request(request);
  if (threads < 2) return;
  int64_t total = 0;
  for (const Unit& unit : plan.units) total += planner.cost(unit);
  const int64_t limit =
      std::max<int64_t>(1, total * args.num_kv_heads / (threads * kUnitsPerThread));
  const size_t whole_units = plan.units.size();
  for (size_t i = 0; i < whole_units; ++i) {
    if (planner.cost(plan.units[i]) > limit) planner.split(i, limit);
  }
  std::stable_sort(plan.units.begin(), plan.units.end(), [&](const Unit& a, const Unit& b) {
    return planner.cost(a) > planner.cost(b);
  });
}

}  // namespace hotshoe
