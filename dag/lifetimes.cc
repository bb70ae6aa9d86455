#include "dag/lifetimes.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "dag/op_table.h"

namespace weft::dag {

namespace {

// Whether the value is, or shows through views alone, what somebody sends into the graph.
bool comes_from_outside(const Graph& graph, ValueId value) {
  const Op* producer = &graph.producer(value);
  while (!producer->inputs.empty() && is_view(graph, *producer))
    producer = &graph.producer(producer->inputs[0]);
  return producer->kind == OpKind::Input;
}

// Whether the value is added to a gradient or written to a statistic when it has been computed.
bool is_kept_beyond(const Graph& graph, ValueId value) {
  return std::any_of(graph.outputs().begin(), graph.outputs().end(), [&](const GraphOutput& output) {
    return output.value == value &&
           (output.role == OutputRole::Gradient || output.role == OutputRole::StateUpdate);
  });
}

class Finder {
 public:
  Finder(const Graph& graph, const RunOrder& order)
      : graph_(graph), order_(order), ops_in_group_(order.time_of_group.size(), 0) {
    for (const uint32_t group : order.group_of_op)
      if (group != RunOrder::kNone) ++ops_in_group_[group];
    found_.root.resize(graph.values().size());
    std::iota(found_.root.begin(), found_.root.end(), 0u);
    found_.of.resize(graph.values().size());
    find_segments();
  }

  Lifetimes run(std::span<const ValueId> kept, std::vector<Received> received) {
    found_.received = std::move(received);
    for (uint32_t i = 0; i < found_.received.size(); ++i) {
      Received& one = found_.received[i];
      received_at_[{one.value.index, one.stage}] = i;
      one.lifetime = from_beginning(one.stage, one.segment);
    }
    share_bytes();
    begin();
    read();
    for (const GraphOutput& output : graph_.outputs())
      if (output.role == OutputRole::Gradient || output.role == OutputRole::StateUpdate)
        need(output.value);
      else
        keep(output.value);
    for (const ValueId value : kept) keep(value);
    return std::move(found_);
  }

 private:
  uint32_t producer(ValueId value) const { return graph_.value(value).producer.index; }
  uint32_t stage(uint32_t op) const { return order_.stage_of_op.empty() ? 0 : order_.stage_of_op[op]; }
  uint32_t time(uint32_t op) const { return order_.time_of_group[order_.group_of_op[op]]; }
  uint32_t segment(uint32_t op) const { return order_.segment_of_op.empty() ? 0 : order_.segment_of_op[op]; }
  bool runs(uint32_t op) const {
    return stage(op) != RunOrder::kNone && order_.group_of_op[op] != RunOrder::kNone;
  }
  bool is_alone(uint32_t op) const { return ops_in_group_[order_.group_of_op[op]] == 1; }
  bool shares(uint32_t op) const {
    return found_.root[graph_.ops()[op].outputs[0].index] != graph_.ops()[op].outputs[0].index;
  }

  // When each stage's segments begin.
  void find_segments() {
    begins_.resize(order_.ends.size());
    for (uint32_t i = 0; i < graph_.ops().size(); ++i) {
      if (!runs(i) || time(i) == RunOrder::kNone) continue;
      std::vector<uint32_t>& begins = begins_[stage(i)];
      if (begins.size() <= segment(i)) begins.resize(segment(i) + 1, order_.ends[stage(i)]);
      for (uint32_t s = 0; s <= segment(i); ++s) begins[s] = std::min(begins[s], time(i));
    }
  }
  uint32_t begin_of(uint32_t stage, uint32_t segment) const {
    return segment < begins_[stage].size() ? begins_[stage][segment] : order_.ends[stage];
  }
  Lifetime from_beginning(uint32_t stage, uint32_t segment) const {
    const uint32_t begin = begin_of(stage, segment);
    return {.first = begin, .last = begin, .first_segment = segment, .last_segment = segment};
  }
  static void extend(Lifetime& lifetime, uint32_t time, uint32_t segment) {
    lifetime.last = std::max(lifetime.last, time);
    lifetime.last_segment = std::max(lifetime.last_segment, segment);
  }

  void share_bytes() {
    for (uint32_t i = 0; i < graph_.ops().size(); ++i) {
      const Op& op = graph_.ops()[i];
      if (runs(i) && is_alone(i) && stage(producer(op.inputs[0])) == stage(i) && is_alias(graph_, op))
        found_.root[op.outputs[0].index] = found_.root[op.inputs[0].index];
    }
  }

  // A value of a group of several has memory only when somebody outside needs it.
  void begin() {
    for (const ValueId input : graph_.inputs())
      if (const uint32_t op = producer(input); stage(op) != RunOrder::kNone)
        found_.of[input.index] = from_beginning(stage(op), segment(op));
    for (uint32_t i = 0; i < graph_.ops().size(); ++i)
      if (runs(i) && is_alone(i) && !shares(i))
        for (const ValueId output : graph_.ops()[i].outputs) need(output);
  }

  // The root's lifetime, begun.
  Lifetime& need(ValueId value) {
    const uint32_t root = found_.root[value.index], op = producer(ValueId{root});
    Lifetime& lifetime = found_.of[root];
    if (!lifetime.needs_memory()) {
      const uint32_t begin = runs(op) ? time(op) : 0;
      lifetime = {.first = begin, .last = begin, .first_segment = segment(op), .last_segment = segment(op)};
    }
    return lifetime;
  }
  void keep(ValueId value) {
    const uint32_t at = stage(producer(value));
    if (at == RunOrder::kNone) return;
    const uint32_t in = segment(producer(value));
    extend(need(value), begin_of(at, in + 1), in);
  }

  void read() {
    for (uint32_t i = 0; i < graph_.ops().size(); ++i) {
      if (!runs(i) || shares(i)) continue;
      for (const ValueId input : graph_.ops()[i].inputs) {
        if (!input.valid()) continue;
        const uint32_t from = producer(input);
        if (stage(from) == stage(i)) {
          if (order_.group_of_op[from] == order_.group_of_op[i]) continue;
          extend(need(input), time(i), segment(i));
        } else if (const auto at = received_at_.find({input.index, stage(i)}); at != received_at_.end()) {
          extend(found_.received[at->second].lifetime, time(i), segment(i));
        }
      }
    }
  }

  const Graph& graph_;
  const RunOrder& order_;
  std::vector<uint32_t> ops_in_group_;
  std::vector<std::vector<uint32_t>> begins_;                      // by stage and segment: its first time
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> received_at_;  // by value and stage
  Lifetimes found_;
};

}  // namespace

bool is_alias(const Graph& graph, const Op& op) {
  return is_view(graph, op) &&
         !(comes_from_outside(graph, op.inputs[0]) && is_kept_beyond(graph, op.outputs[0]));
}

Lifetimes find_lifetimes(const Graph& graph, const RunOrder& order, std::span<const ValueId> kept,
                         std::vector<Received> received) {
  return Finder(graph, order).run(kept, std::move(received));
}

}  // namespace weft::dag
