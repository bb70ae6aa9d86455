#include "dag/cut.h"

#include <algorithm>
#include <limits>
#include <string>
#include <tuple>

namespace weft::dag {
namespace {

constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();

class Cutter {
 public:
  explicit Cutter(const CutRequest& request)
      : request_(request),
        graph_(*request.graph),
        count_(static_cast<uint32_t>(graph_.ops().size())),
        copied_(copied_leaves(graph_)) {}

  Result<Cut> run() {
    WEFT_TRY_STATUS(check());
    WEFT_TRY_STATUS(find_units());
    WEFT_TRY_STATUS(count_hops());
    place_leaves();
    number_segments();
    find_crossings();
    return std::move(cut_);
  }

 private:
  uint32_t producer(ValueId value) const { return graph_.value(value).producer.index; }
  uint32_t stage(uint32_t op) const { return request_.stage_of_op[op]; }
  bool is_leaf(uint32_t op) const { return graph_.ops()[op].inputs.empty(); }
  bool crosses(ValueId value, uint32_t reader) const {
    return !copied_[producer(value)] && stage(producer(value)) != stage(reader);
  }

  Status check() const {
    if (request_.stage_of_op.size() != count_)
      return fail(ErrorCode::InvalidArgument,
                  "a cut needs one stage for each of the " + std::to_string(count_) + " ops");
    for (const uint32_t stage : request_.stage_of_op)
      if (stage >= request_.class_of_stage.size())
        return fail(ErrorCode::InvalidArgument, "stage " + std::to_string(stage) + " is out of range");
    for (const uint32_t index : request_.class_of_stage)
      if (index >= request_.classes.size() || request_.classes[index]->op_of.size() != count_)
        return fail(ErrorCode::InvalidArgument, "a stage's class has no graph of these ops");
    return {};
  }

  // What runs as one: the ops of a group of their stage's class, or one op.
  Status find_units() {
    unit_of_op_.assign(count_, kNone);
    for (uint32_t c = 0; c < request_.classes.size(); ++c) {
      const Lowered& lowered = *request_.classes[c];
      const auto ops = lowered.graph.ops();
      for (uint32_t begin = 0, end = 0; begin < ops.size(); begin = end) {
        const GroupId group = ops[begin].group;
        for (end = begin + 1; group.valid() && end < ops.size() && ops[end].group == group;) ++end;
        WEFT_TRY_STATUS(add_group(c, lowered, begin, end));
      }
    }
    return {};
  }

  Status add_group(uint32_t device_class, const Lowered& lowered, uint32_t begin, uint32_t end) {
    if (lowered.put_in[begin]) return {};
    const uint32_t first = lowered.source_op[begin].index;
    bool ours = false;
    for (uint32_t i = begin; i < end && !ours; ++i)
      ours = request_.class_of_stage[stage(lowered.source_op[i].index)] == device_class;
    if (!ours) return {};
    for (uint32_t i = begin; i < end; ++i) {
      const uint32_t op = lowered.source_op[i].index;
      if (stage(op) != stage(first))
        return fail(ErrorCode::InvalidArgument, "the cut between stages " + std::to_string(stage(first)) +
                                                    " and " + std::to_string(stage(op)) +
                                                    " goes through fusion group " +
                                                    std::to_string(lowered.graph.ops()[begin].group.index));
      unit_of_op_[op] = units_;
    }
    ++units_;
    return {};
  }

  // Of a unit: the most border crossings on a path to it. One with more waits for values that one with fewer,
  // perhaps of the same stage, has sent out before. Backward comes after all of forward.
  Status count_hops() {
    hops_.assign(units_, 0);
    std::vector<uint32_t> waits(units_, 0), begin(units_ + 1, 0);
    const auto edges = [&](auto&& visit) {
      for (uint32_t i = 0; i < count_; ++i)
        for (const ValueId input : graph_.ops()[i].inputs) {
          if (!input.valid() || copied_[producer(input)]) continue;
          const uint32_t from = unit_of_op_[producer(input)], to = unit_of_op_[i];
          if (from != to) visit(from, to, stage(producer(input)) != stage(i));
        }
    };
    edges([&](uint32_t from, uint32_t to, bool) { ++begin[from + 1], ++waits[to]; });
    for (uint32_t u = 0; u < units_; ++u) begin[u + 1] += begin[u];
    std::vector<std::pair<uint32_t, bool>> after(begin.back());
    std::vector<uint32_t> next(begin.begin(), begin.end() - 1), ready;
    edges([&](uint32_t from, uint32_t to, bool border) { after[next[from]++] = {to, border}; });
    for (uint32_t u = 0; u < units_; ++u)
      if (waits[u] == 0) ready.push_back(u);
    size_t done = 0;
    for (; done < ready.size(); ++done)
      for (uint32_t e = begin[ready[done]]; e < begin[ready[done] + 1]; ++e) {
        const auto [to, border] = after[e];
        hops_[to] = std::max(hops_[to], hops_[ready[done]] + (border ? 1u : 0u));
        if (--waits[to] == 0) ready.push_back(to);
      }
    if (done != units_)
      return fail(ErrorCode::InvalidArgument,
                  "fusion groups of different device classes wait for each other across the cut");
    level_of_op_.resize(count_);
    for (uint32_t i = 0; i < count_; ++i)
      level_of_op_[i] = hops_[unit_of_op_[i]] + (graph_.ops()[i].phase == Phase::Backward ? count_ : 0);
    return {};
  }

  // A leaf that other stages wait for stays at the beginning; others come with their first reader at home, so
  // that no segment is there for leaves alone.
  void place_leaves() {
    std::vector<uint32_t> first(count_, kNone);
    std::vector<bool> sent(count_, false);
    for (uint32_t i = 0; i < count_; ++i)
      for (const ValueId input : graph_.ops()[i].inputs) {
        if (!input.valid() || !is_leaf(producer(input))) continue;
        const uint32_t leaf = producer(input);
        if (stage(leaf) == stage(i)) first[leaf] = std::min(first[leaf], level_of_op_[i]);
        if (crosses(input, i)) sent[leaf] = true;
      }
    std::vector<uint32_t> lowest(request_.class_of_stage.size(), kNone);
    for (uint32_t i = 0; i < count_; ++i)
      if (!is_leaf(i) || sent[i]) lowest[stage(i)] = std::min(lowest[stage(i)], level_of_op_[i]);
    for (uint32_t i = 0; i < count_; ++i) {
      if (!is_leaf(i) || sent[i]) continue;
      if (first[i] != kNone) level_of_op_[i] = first[i];
      // Read nowhere here: where the stage begins anyway.
      else if (lowest[stage(i)] != kNone)
        level_of_op_[i] = lowest[stage(i)];
    }
  }

  void number_segments() {
    const auto stages = static_cast<uint32_t>(request_.class_of_stage.size());
    std::vector<std::vector<uint32_t>> levels(stages), sending(stages);
    for (uint32_t i = 0; i < count_; ++i)
      for (const ValueId input : graph_.ops()[i].inputs)
        if (input.valid() && crosses(input, i))
          sending[stage(producer(input))].push_back(level_of_op_[producer(input)]);
    for (uint32_t i = 0; i < count_; ++i)
      if (levels[stage(i)].empty() || levels[stage(i)].back() != level_of_op_[i])
        levels[stage(i)].push_back(level_of_op_[i]);
    cut_.stages.resize(stages);
    for (uint32_t s = 0; s < stages; ++s) {
      std::sort(levels[s].begin(), levels[s].end());
      levels[s].erase(std::unique(levels[s].begin(), levels[s].end()), levels[s].end());
      std::sort(sending[s].begin(), sending[s].end());
      join_levels(levels[s], sending[s]);
      const auto backward = std::lower_bound(levels[s].begin(), levels[s].end(), count_);
      cut_.stages[s] = {static_cast<uint32_t>(levels[s].size()),
                        static_cast<uint32_t>(backward - levels[s].begin())};
    }
    cut_.segment_of_op.resize(count_);
    for (uint32_t i = 0; i < count_; ++i) {
      const auto& of = levels[stage(i)];
      cut_.segment_of_op[i] =
          static_cast<uint32_t>(std::lower_bound(of.begin(), of.end(), level_of_op_[i]) - of.begin());
    }
  }

  // What sends nothing need not run apart from what follows in its phase, for nobody waits for it: its ops go
  // to the next level that is left. Derivatives that hang on no cotangent are such.
  void join_levels(std::vector<uint32_t>& levels, const std::vector<uint32_t>& sending) const {
    std::vector<uint32_t> left;
    for (size_t k = 0; k < levels.size(); ++k) {
      const bool is_last = k + 1 == levels.size() || (levels[k] < count_ && levels[k + 1] >= count_);
      if (is_last || std::binary_search(sending.begin(), sending.end(), levels[k])) left.push_back(levels[k]);
    }
    levels = std::move(left);
  }

  void find_crossings() {
    for (uint32_t i = 0; i < count_; ++i)
      for (const ValueId input : graph_.ops()[i].inputs)
        if (input.valid() && crosses(input, i))
          cut_.crossings.push_back({input, stage(producer(input)), stage(i),
                                    cut_.segment_of_op[producer(input)], cut_.segment_of_op[i]});
    const auto key = [](const Crossing& c) { return std::tuple(c.value.index, c.to_stage, c.to_segment); };
    std::sort(cut_.crossings.begin(), cut_.crossings.end(),
              [&](const Crossing& a, const Crossing& b) { return key(a) < key(b); });
    const auto same = [](const Crossing& a, const Crossing& b) {
      return a.value == b.value && a.to_stage == b.to_stage;
    };
    cut_.crossings.erase(std::unique(cut_.crossings.begin(), cut_.crossings.end(), same),
                         cut_.crossings.end());
  }

  const CutRequest& request_;
  const Graph& graph_;
  uint32_t count_;
  std::vector<bool> copied_;
  uint32_t units_ = 0;
  std::vector<uint32_t> unit_of_op_, hops_;  // by op; by unit
  std::vector<uint32_t> level_of_op_;        // hops, backward after all of forward
  Cut cut_;
};

}  // namespace

std::vector<bool> copied_leaves(const Graph& graph) {
  std::vector<bool> copied(graph.ops().size(), false);
  for (uint32_t i = 0; i < copied.size(); ++i) copied[i] = graph.ops()[i].kind == OpKind::Constant;
  for (const Initializer& initializer : graph.initializers())
    if (initializer.role == InitializerRole::Buffer || initializer.role == InitializerRole::Frozen)
      copied[graph.value(initializer.value).producer.index] = true;
  return copied;
}

Result<Cut> cut(const CutRequest& request) { return Cutter(request).run(); }

}  // namespace weft::dag
