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
  }

  Lifetimes run(std::span<const ValueId> kept, std::vector<Received> received) {
    found_.received = std::move(received);
    for (uint32_t i = 0; i < found_.received.size(); ++i)
      received_at_[{found_.received[i].value.index, found_.received[i].stage}] = i;
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
  bool runs(uint32_t op) const {
    return stage(op) != RunOrder::kNone && order_.group_of_op[op] != RunOrder::kNone;
  }
  bool is_alone(uint32_t op) const { return ops_in_group_[order_.group_of_op[op]] == 1; }
  bool shares(uint32_t op) const {
    return found_.root[graph_.ops()[op].outputs[0].index] != graph_.ops()[op].outputs[0].index;
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
    for (const ValueId input : graph_.inputs()) found_.of[input.index] = {.first = 0, .last = 0};
    for (uint32_t i = 0; i < graph_.ops().size(); ++i)
      if (runs(i) && is_alone(i) && !shares(i))
        for (const ValueId output : graph_.ops()[i].outputs) need(output);
  }

  // The root's lifetime, begun.
  Lifetime& need(ValueId value) {
    const uint32_t root = found_.root[value.index], op = producer(ValueId{root});
    Lifetime& lifetime = found_.of[root];
    if (!lifetime.needs_memory()) {
      lifetime.first = runs(op) ? time(op) : 0;
      lifetime.last = lifetime.first;
    }
    return lifetime;
  }
  void keep(ValueId value) {
    const uint32_t at = stage(producer(value));
    if (at == RunOrder::kNone) return;
    Lifetime& lifetime = need(value);
    lifetime.last = order_.ends[at];
  }

  void read() {
    for (uint32_t i = 0; i < graph_.ops().size(); ++i) {
      if (!runs(i) || shares(i)) continue;
      for (const ValueId input : graph_.ops()[i].inputs) {
        if (!input.valid()) continue;
        const uint32_t from = producer(input);
        if (stage(from) == stage(i)) {
          if (order_.group_of_op[from] == order_.group_of_op[i]) continue;
          Lifetime& lifetime = need(input);
          lifetime.last = std::max(lifetime.last, time(i));
        } else if (const auto at = received_at_.find({input.index, stage(i)}); at != received_at_.end()) {
          Lifetime& lifetime = found_.received[at->second].lifetime;
          lifetime.last = std::max(lifetime.last, time(i));
        }
      }
    }
  }

  const Graph& graph_;
  const RunOrder& order_;
  std::vector<uint32_t> ops_in_group_;
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
