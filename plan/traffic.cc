#include "plan/traffic.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <unordered_map>

#include "dag/cut.h"
#include "dag/split.h"

namespace weft::plan {

using dag::Op;
using dag::OpId;
using dag::ValueId;

namespace {

constexpr uint32_t kNobody = std::numeric_limits<uint32_t>::max();

}  // namespace

void Traffic::for_each_value(const VisitValue& visit) const {
  const std::vector<bool> copied = dag::copied_leaves(graph_);
  std::vector<uint32_t> readers;
  for (uint32_t v = 0; v < users_.size(); ++v) {
    const uint32_t producer = graph_.values()[v].producer.index;
    if (copied[producer] || users_[v].empty()) continue;
    readers.clear();
    for (const OpId reader : users_[v]) readers.push_back(model_.position_of_op[reader.index]);
    std::sort(readers.begin(), readers.end());
    visit(model_.position_of_op[producer], readers, graph_.values()[v].spec.bytes().value);
  }
}

void Traffic::for_each_sum(const VisitSum& visit) const {
  std::vector<std::shared_ptr<const dag::Lowered>> classes;
  classes.reserve(model_.classes.size());
  for (const Model::Class& of : model_.classes) classes.push_back(of.lowered);
  const std::vector<bool> movable = dag::movable_sums(graph_, classes);
  std::unordered_map<uint32_t, std::pair<uint32_t, uint32_t>>
      span;  // by op: from its lowest to its highest term
  const auto span_of = [&](ValueId term) {
    const uint32_t producer = graph_.value(term).producer.index, at = model_.position_of_op[producer];
    const auto sum = span.find(producer);
    return sum != span.end() ? sum->second : std::pair(at, at);
  };
  for (uint32_t i = 0; i < movable.size(); ++i) {
    if (!movable[i]) continue;
    const Op& op = graph_.ops()[i];
    const auto a = span_of(op.inputs[0]), b = span_of(op.inputs[1]);
    const uint32_t low = std::min(a.first, b.first), high = std::max(a.second, b.second);
    const uint32_t at = model_.position_of_op[i];
    if (low <= at) continue;
    span[i] = {low, high};
    const uint32_t others =
        std::min(lowest_other_reader(op.inputs[0], i), lowest_other_reader(op.inputs[1], i));
    if (others > at) visit({at + 1, std::min(low, others)}, high, graph_.spec(op.outputs[0]).bytes().value);
  }
}

uint32_t Traffic::lowest_other_reader(ValueId term, uint32_t sum) const {
  uint32_t lowest = kNobody;
  for (const OpId reader : users_[term.index])
    if (reader.index != sum) lowest = std::min(lowest, model_.position_of_op[reader.index]);
  return lowest;
}

std::vector<int64_t> bytes_over_borders(const Model& model) {
  std::vector<int64_t> change(model.positions + 2, 0);
  const auto add = [&](uint32_t first, uint32_t last, int64_t bytes) {
    if (first > last) return;
    change[first] += bytes;
    change[last + 1] -= bytes;
  };
  const Traffic traffic(model);
  traffic.for_each_value([&](uint32_t from, const std::vector<uint32_t>& readers, int64_t bytes) {
    add(from + 1, readers.back(), bytes);
    add(readers.front() + 1, from, bytes);
  });
  traffic.for_each_sum([&](std::pair<uint32_t, uint32_t> begins, uint32_t, int64_t bytes) {
    add(begins.first, begins.second, -bytes);
  });
  change.resize(model.positions);
  std::partial_sum(change.begin(), change.end(), change.begin());
  return change;
}

class CrossingBuilder {
 public:
  CrossingBuilder(const Traffic& traffic, uint32_t positions, const Ends& together)
      : traffic_(traffic), together_(together), crossing_(positions) {}

  Crossing run() {
    traffic_.for_each_value([&](uint32_t from, const std::vector<uint32_t>& readers, int64_t bytes) {
      add(from, others(from, readers), bytes);
    });
    traffic_.for_each_sum([&](std::pair<uint32_t, uint32_t> begins, uint32_t high, int64_t bytes) {
      if (begins.first <= together_.head_end && high >= together_.tail_begin) return;
      for (uint32_t begin = begins.first; begin <= begins.second; ++begin)
        crossing_.returned_[begin * crossing_.size_ + high + 1] -= bytes;
    });
    for (auto* matrix : {&crossing_.received_, &crossing_.returned_})
      for (size_t begin = 0; begin < crossing_.size_; ++begin)
        for (size_t end = 1; end < crossing_.size_; ++end)
          (*matrix)[begin * crossing_.size_ + end] += (*matrix)[begin * crossing_.size_ + end - 1];
    return std::move(crossing_);
  }

 private:
  // Without those in the other piece of the stage that makes the value.
  std::span<const uint32_t> others(uint32_t from, std::span<const uint32_t> readers) const {
    if (from < together_.head_end)
      while (!readers.empty() && readers.back() >= together_.tail_begin)
        readers = readers.first(readers.size() - 1);
    if (from >= together_.tail_begin)
      while (!readers.empty() && readers.front() < together_.head_end) readers = readers.subspan(1);
    return readers;
  }
  // A stage that begins behind the producer and ends behind its own first reader receives the value; one that
  // holds the producer and begins behind the lowest reader returns it.
  void add(uint32_t from, std::span<const uint32_t> readers, int64_t bytes) {
    if (readers.empty()) return;
    uint32_t begin = from + 1;
    for (const uint32_t reader : readers)
      for (; begin <= reader; ++begin) crossing_.received_[begin * crossing_.size_ + reader + 1] += bytes;
    for (begin = readers.front() + 1; begin <= from; ++begin)
      crossing_.returned_[begin * crossing_.size_ + from + 1] += bytes;
  }

  const Traffic& traffic_;
  const Ends& together_;
  Crossing crossing_;
};

Crossing make_crossing(const Traffic& traffic, uint32_t positions, const Ends& together) {
  return CrossingBuilder(traffic, positions, together).run();
}
Crossing make_crossing(const Model& model) {
  return make_crossing(Traffic(model), model.positions, {.head_end = 0, .tail_begin = kNobody});
}

}  // namespace weft::plan
