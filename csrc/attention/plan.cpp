#include "attention/plan.h"

#include <algorithm>
#include <bit>
#include <limits>
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
  const int unit_keys = std::max(args.block_size, 16);  // keeps column vectors within a block

  int num_tokens(int request) const {
    return args.query_start_loc[request + 1] - args.query_start_loc[request];
  }

  const int32_t* table(int request) const {
    return args.block_table + request * args.table_stride;
  }

  int64_t cost(const Unit& unit) const {
    const int64_t rows = int64_t(unit.num_queries) * group_size;
    return (unit.key_end - unit.key_begin) * (rows + kPassCost);
  }

  void check(int request) const {
    const int tokens = num_tokens(request), length = args.seq_lens[request];
    const int64_t capacity = int64_t(args.max_blocks) * args.block_size;
    if (tokens <= 0 || (length >= tokens && length <= capacity)) return;
    throw std::invalid_argument("request " + std::to_string(request) + " has " +
                                std::to_string(tokens) + " queries, length " +
                                std::to_string(length) + " and room for " +
                                std::to_string(capacity) + " tokens");
  }

  void add_query(int request, int token) {
    const int position = args.seq_lens[request] - num_tokens(request) + token;
    plan.queries.push_back({args.query_start_loc[request] + token, position});
  }

  void add_request(int request) {
    const int tokens = num_tokens(request);
    for (int first = 0; first < tokens; first += tile_tokens) {
      const int count = std::min(tile_tokens, tokens - first);
      const int query = int(plan.queries.size());
      for (int i = 0; i < count; ++i) add_query(request, first + i);
      const int position = plan.queries[query].position;
      int key_begin = args.window > 0 ? std::max(0, position - args.window + 1) : 0;
      key_begin -= key_begin % args.block_size;
      const int later = std::min(args.ahead, args.seq_lens[request] - position - count);
      plan.units.push_back({request, query, count, key_begin, position + count + later, 0});
    }
  }

  // Keys before a decoding request's own one, as far as units may be cut there.
  int earlier_keys(int request) const {
    return (args.seq_lens[request] - 1) / unit_keys * unit_keys;
  }

  // Leading keys, up to `most`, that two requests have in the same blocks.
  int common_keys(int one, int other, int most) const {
    const int32_t *blocks = table(one), *end = blocks + most / args.block_size;
    const int64_t same = std::mismatch(blocks, end, table(other)).first - blocks;
    return int(same * args.block_size / unit_keys * unit_keys);
  }

  // One pass over the keys that some decoding requests have in common, and one over the rest of
  // each.
  void add_together(const int* requests, int count, int keys) {
    const int query = int(plan.queries.size());
    plan.units.push_back({requests[0], query, count, 0, keys, 0});
    for (int i = 0; i < count; ++i) {
      add_query(requests[i], 0);
      plan.units.push_back({requests[i], query + i, 1, keys, args.seq_lens[requests[i]], 0});
      plan.added[requests[i]] = true;
    }
  }

  // Finds requests that decode behind the same blocks; sorted by their tables, they are neighbors.
  void share_prefixes() {
    std::vector<int>& found = plan.decoding;
    found.clear();
    for (int request = 0; request < args.num_reqs && args.window == 0; ++request) {
      const bool decodes = num_tokens(request) == 1;
      if (decodes && earlier_keys(request) >= kMinSplitKeys) found.push_back(request);
    }
    if (found.size() < 2) return;
    const auto end = [&](int request) {
      return table(request) + earlier_keys(request) / args.block_size;
    };
    std::sort(found.begin(), found.end(), [&](int a, int b) {
      return std::lexicographical_compare(table(a), end(a), table(b), end(b));
    });
    for (size_t i = 0; i < found.size();) {
      int count = 1, keys = earlier_keys(found[i]);
      for (; count < tile_tokens && i + count < found.size(); ++count) {
        const int next = found[i + count], most = std::min(keys, earlier_keys(next));
        const int common = common_keys(found[i], next, most);
        // Passes saved must not become fewer by one more request that shares less.
        const bool worse = int64_t(count) * common < int64_t(count - 1) * keys;
        if (common < kMinSplitKeys || worse) break;
        keys = common;
      }
      if (count > 1) add_together(&found[i], count, keys);
      i += count;
    }
  }

  // Cuts a unit into tasks that cost no more than `limit`: between heads, or between keys.
  void split(size_t index, int64_t limit) {
    Unit& unit = plan.units[index];
    const int keys = unit.key_end - unit.key_begin, heads = args.num_kv_heads;
    const bool reads = unit.num_queries * group_size <= kReadingRows;
    // Of a unit that reads, all heads would be one task.
    const int64_t whole_task = cost(unit) * (reads ? heads : 1);
    const int64_t wanted = (whole_task + limit - 1) / limit, most = keys / kMinSplitKeys;
    const int parts = int(std::max<int64_t>(1, std::min(wanted, most)));
    if (reads) unit.task_heads = int(std::clamp<int64_t>(limit * parts / cost(unit), 1, heads));
    const Unit whole = unit;
    const int step = ((keys + parts - 1) / parts + unit_keys - 1) / unit_keys * unit_keys;
    Query* queries = &plan.queries[whole.first_query];
    int split = queries->num_splits;
    for (int begin = whole.key_begin; begin < whole.key_end; begin += step, ++split) {
      Unit part = whole;
      part.key_begin = begin;
      part.key_end = std::min(begin + step, whole.key_end);
      part.split = split;
      if (begin == whole.key_begin) {
        plan.units[index] = part;
      } else {
        plan.units.push_back(part);
      }
    }
    for (int i = 0; i < whole.num_queries; ++i) queries[i].num_splits = split;
  }

  // Head by head: units of one head may read the same keys.
  void place_tasks() {
    std::stable_sort(plan.units.begin(), plan.units.end(), [&](const Unit& a, const Unit& b) {
      return cost(a) * a.task_heads > cost(b) * b.task_heads;
    });
    for (int head = 0; head < args.num_kv_heads; ++head) {
      for (size_t i = 0; i < plan.units.size(); ++i) {
        const int heads = plan.units[i].task_heads;
        if (head % heads) continue;
        plan.tasks.push_back({int(i), head, std::min(heads, args.num_kv_heads - head)});
      }
    }
  }

  void place_partials() {
    for (Query& query : plan.queries) {
      if (query.num_splits < 2) continue;
      query.counter = plan.num_counters++;
      query.partial = plan.partial_floats;
      plan.partial_floats +=
          int64_t(args.num_kv_heads) * query.num_splits * group_size * (args.head_dim + 2);
    }
  }
};

void check_sizes(const AttentionArgs& args) {
  const bool heads = args.num_kv_heads > 0 && args.num_heads % args.num_kv_heads == 0;
  const bool dim = args.head_dim >= 8 && args.head_dim <= 512 && args.head_dim % 8 == 0;
  const bool block = args.block_size >= 8 && std::has_single_bit(unsigned(args.block_size));
  if (!heads) throw std::invalid_argument("num_heads must be a multiple of num_kv_heads");
  if (!dim) throw std::invalid_argument("head_dim must be a multiple of 8 up to 512");
  if (!block) throw std::invalid_argument("block_size must be a power of two from 8");
  if (!(args.scale > 0)) throw std::invalid_argument("scale must be positive");
}

}  // namespace

void make_plan(const AttentionArgs& args, int threads, Plan& plan) {
  check_sizes(args);
  plan.units.clear();
  plan.tasks.clear();
  plan.queries.clear();
  plan.num_counters = 0;
  plan.partial_floats = 0;
  plan.added.assign(args.num_reqs, false);
  Planner planner{args, plan};
  for (int request = 0; request < args.num_reqs; ++request) planner.check(request);
  planner.share_prefixes();
  for (int request = 0; request < args.num_reqs; ++request) {
    if (!plan.added[request]) planner.add_request(request);
  }
  int64_t total = 0;
  for (const Unit& unit : plan.units) total += planner.cost(unit);
  const int64_t limit =
      threads < 2
          ? std::numeric_limits<int64_t>::max() / 2
          : std::max<int64_t>(1, total * args.num_kv_heads / (threads * kUnitsPerThread));
  const size_t whole_units = plan.units.size();
  for (size_t i = 0; i < whole_units; ++i) planner.split(i, limit);
  planner.place_partials();
  planner.place_tasks();
}

}  // namespace hotshoe
