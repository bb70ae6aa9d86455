#include "dag/incremental/parts.h"

#include <algorithm>
#include <numeric>
#include <set>

namespace weft::dag::incremental {
namespace {

bool moves_elements(OpKind kind) {
  return kind == OpKind::Reshape || kind == OpKind::Transpose || kind == OpKind::Expand;
}

// The earliest of the values that `value` is only a rearrangement of and that are smaller: grouped heads
// before they are repeated.
ValueId smallest_form(const Analysis& analysis, ValueId value) {
  const Graph& graph = *analysis.graph;
  ValueId best = value;
  for (ValueId at = value; moves_elements(graph.producer(at).kind);) {
    at = graph.producer(at).inputs[0];
    if (graph.spec(at).element_count() < graph.spec(best).element_count()) best = at;
  }
  return best;
}

class PartMaker {
 public:
  PartMaker(const Analysis& analysis, ValueId tokens, ValueId logits)
      : analysis_(analysis),
        graph_(*analysis.graph),
        tokens_(tokens),
        logits_(logits),
        cluster_(graph_.ops().size(), kNone),
        needed_(graph_.ops().size()) {
    parts_.of_op.assign(graph_.ops().size(), kNone);
  }

  Result<Parts> run() {
    find_needed();
    join_pairs();
    for (bool again = true; again;) again = take_in_between();
    WEFT_TRY_STATUS(find_levels());
    WEFT_TRY_STATUS(find_interfaces());
    return std::move(parts_);
  }

 private:
  static constexpr uint32_t kNone = Parts::kNone;

  // The values that an op reads: (value, by keys). What is kept stands for what is looked at.
  template <typename F>
  void each_read(uint32_t op, const F& f) const {
    const auto& operands = analysis_.operands[op];
    for (size_t i = 0; i < operands.size(); ++i) {
      const ValueId value = graph_.ops()[op].inputs[i];
      if (operands[i].use == Use::Rows) f(value, false);
      if (operands[i].use == Use::Keys) f(parts_.cached.at(value), true);
    }
  }
  uint32_t maker(ValueId value) const { return graph_.value(value).producer.index; }

  void find_needed() {
    needed_[maker(logits_)] = true;
    for (uint32_t op = static_cast<uint32_t>(graph_.ops().size()); op-- > 0;) {
      if (!needed_[op]) continue;
      const auto& operands = analysis_.operands[op];
      for (size_t i = 0; i < operands.size(); ++i) {
        const ValueId value = graph_.ops()[op].inputs[i];
        if (operands[i].use == Use::Keys) parts_.cached.emplace(value, smallest_form(analysis_, value));
      }
      each_read(op, [&](ValueId value, bool) { needed_[maker(value)] = true; });
    }
    needed_[maker(tokens_)] = false;
  }

  bool attends(uint32_t op) const {
    const auto& operands = analysis_.operands[op];
    return std::any_of(operands.begin(), operands.end(), [](const Operand& operand) {
      return operand.use == Use::Keys || (operand.use == Use::Rows && operand.axes.has(Digit::Key));
    });
  }

  // Ops that hand pairs to each other run in one part. A cluster is named by its first op.
  uint32_t root(uint32_t op) {
    while (cluster_[op] != op) op = cluster_[op] = cluster_[cluster_[op]];
    return op;
  }
  void join(uint32_t a, uint32_t b) {
    a = root(a), b = root(b);
    cluster_[std::max(a, b)] = std::min(a, b);
  }
  void join_pairs() {
    for (uint32_t op = 0; op < cluster_.size(); ++op) {
      if (!needed_[op] || !attends(op)) continue;
      cluster_[op] = op;
      each_read(op, [&](ValueId value, bool) {
        if (analysis_.values[value.index].is_pair()) join(op, maker(value));
      });
    }
  }

  // Ops that a cluster needs and that need the cluster join it, such as the reciprocal of a sum over keys.
  bool take_in_between() {
    std::map<uint32_t, uint32_t> last;
    for (uint32_t op = 0; op < cluster_.size(); ++op)
      if (cluster_[op] != kNone) last[root(op)] = op;
    bool grew = false;
    for (const auto& [first, end] : last)
      if (root(first) == first && take_in(first, end)) grew = true;
    return grew;
  }
  bool take_in(uint32_t cluster, uint32_t last) {
    std::vector<bool> after(last + 1), before(last + 1);
    const auto is_in = [&](uint32_t op) { return cluster_[op] != kNone && root(op) == cluster; };
    for (uint32_t op = cluster; op <= last; ++op)
      if (needed_[op])
        each_read(op, [&](ValueId value, bool) {
          const uint32_t from = maker(value);
          if (from >= cluster && (is_in(from) || after[from])) after[op] = true;
        });
    for (uint32_t op = last + 1; op-- > cluster;)
      if (needed_[op] && (is_in(op) || before[op]))
        each_read(op, [&](ValueId value, bool) {
          if (maker(value) >= cluster) before[maker(value)] = true;
        });
    bool grew = false;
    for (uint32_t op = cluster; op <= last; ++op) {
      if (is_in(op) || !after[op] || !before[op]) continue;
      if (cluster_[op] == kNone) cluster_[op] = op;
      join(op, cluster);
      grew = true;
    }
    return grew;
  }

  // Even for rows, odd for attending; an op's part comes after those of what it reads.
  Status find_levels() {
    std::vector<uint32_t> part(cluster_.size());  // by op, or by a cluster's first op
    const auto key = [&](uint32_t op) { return cluster_[op] == kNone ? op : root(op); };
    const auto is_odd = [&](uint32_t op) { return cluster_[op] != kNone; };
    bool changed = true;
    for (size_t turn = 0; changed; ++turn) {
      if (turn > cluster_.size()) return fail(ErrorCode::Unsupported, "attention depends on itself");
      changed = false;
      for (uint32_t op = 0; op < cluster_.size(); ++op) {
        if (!needed_[op]) continue;
        uint32_t least = is_odd(op) ? 1 : 0;
        each_read(op, [&](ValueId value, bool) {
          const uint32_t from = maker(value);
          if (value == tokens_ || key(from) == key(op)) return;
          const uint32_t at = part[key(from)];
          least = std::max(least, at % 2 == least % 2 ? at : at + 1);
        });
        if (part[key(op)] >= least) continue;
        part[key(op)] = least;
        changed = true;
      }
    }
    for (uint32_t op = 0; op < cluster_.size(); ++op)
      if (needed_[op]) parts_.of_op[op] = part[key(op)];
    parts_.count = (part[key(maker(logits_))] | 1) + (is_odd(maker(logits_)) ? 2 : 0);
    return {};
  }

  Status find_interfaces() {
    std::vector<std::set<ValueId>> inputs(parts_.count), outputs(parts_.count), caches(parts_.count);
    const auto pass = [&](ValueId value, uint32_t to) -> Status {
      const uint32_t from = value == tokens_ ? kNone : parts_.of_op[maker(value)];
      if (from == to) return {};
      if (analysis_.values[value.index].is_pair())
        return fail(ErrorCode::Unsupported, "'" + graph_.value(value).name.substr(0, 128) +
                                                "' hands the scores of one attention to another");
      inputs[to].insert(value);
      if (from != kNone) outputs[from].insert(value);
      return {};
    };
    for (uint32_t op = 0; op < cluster_.size(); ++op) {
      if (parts_.of_op[op] == kNone) continue;
      Status status;
      each_read(op, [&](ValueId value, bool keys) {
        if (keys) caches[parts_.of_op[op]].insert(value);
        if (status) status = pass(value, parts_.of_op[op]);
      });
      WEFT_TRY_STATUS(std::move(status));
    }
    const uint32_t last = parts_.count - 1;
    WEFT_TRY_STATUS(pass(logits_, last));
    outputs[last].insert(logits_);
    for (uint32_t part = 0; part < parts_.count; ++part)
      parts_.interfaces.push_back({{inputs[part].begin(), inputs[part].end()},
                                   {outputs[part].begin(), outputs[part].end()},
                                   {caches[part].begin(), caches[part].end()}});
    return {};
  }

  const Analysis& analysis_;
  const Graph& graph_;
  ValueId tokens_, logits_;
  std::vector<uint32_t> cluster_;  // by op: another op of its cluster, nearer to the first
  std::vector<bool> needed_;       // by op
  Parts parts_;
};

}  // namespace

Result<Parts> make_parts(const Analysis& analysis, ValueId tokens, ValueId logits) {
  return PartMaker(analysis, tokens, logits).run();
}

}  // namespace weft::dag::incremental
