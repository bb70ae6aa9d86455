#include "plan/pipeline.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <string_view>
#include <tuple>
#include <unordered_map>

#include "dag/op_table.h"

namespace weft::plan {

using dag::Graph;
using dag::Op;
using dag::OpKind;
using dag::OutputRole;
using dag::Phase;
using dag::ValueId;

namespace {

constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();
constexpr int64_t kAlignment = 64;

Duration to_duration(double seconds) {
  return Duration(static_cast<int64_t>(std::ceil(std::min(seconds, 1e6) * 1e9)));
}
int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// A value that a stage reads and another makes.
struct Crossing {
  uint32_t value = 0, to_stage = 0, reader_group = 0;  // the group that reads it first
};

class PipelineBuilder {
 public:
  PipelineBuilder(const Graph& graph, std::span<const GroupCost> groups,
                  std::span<const uint32_t> stage_of_op, std::span<const Rates> rates,
                  const PipelineOptions& options)
      : graph_(graph),
        groups_(groups),
        stage_of_op_(stage_of_op),
        rates_(rates),
        options_(options),
        stages_(static_cast<uint32_t>(rates.size())),
        group_of_op_(graph.ops().size()),
        copied_(graph.ops().size(), false) {
    pipeline_.stages.resize(stages_);
    for (uint32_t g = 0; g < groups.size(); ++g)
      for (uint32_t i = groups[g].begin; i < groups[g].end; ++i) group_of_op_[i] = g;
    for (uint32_t i = 0; i < copied_.size(); ++i) copied_[i] = graph.ops()[i].kind == OpKind::Constant;
    for (const auto& initializer : graph.initializers())
      if (initializer.role == dag::InitializerRole::Buffer ||
          initializer.role == dag::InitializerRole::Frozen)
        copied_[producer(initializer.value)] = true;
  }

  Pipeline run() {
    count_hops();
    find_crossings();
    make_segments();
    make_messages();
    add_optimizer();
    add_memory();
    return std::move(pipeline_);
  }

 private:
  uint32_t producer(ValueId value) const { return graph_.value(value).producer.index; }

  // As dag::split counts: the most border crossings on a path to a group, backward after all of forward.
  void count_hops() {
    hops_.assign(groups_.size(), 0);
    for (uint32_t g = 0; g < groups_.size(); ++g)
      for (uint32_t i = groups_[g].begin; i < groups_[g].end; ++i)
        for (const ValueId input : graph_.ops()[i].inputs) {
          if (!input.valid()) continue;
          const uint32_t from = producer(input);
          if (from >= groups_[g].begin || copied_[from]) continue;
          hops_[g] = std::max(hops_[g], hops_[group_of_op_[from]] + (stage_of_op_[from] != stage_of_op_[i]));
        }
    for (uint32_t g = 0; g < groups_.size(); ++g)
      if (groups_[g].phase == Phase::Backward) hops_[g] += static_cast<uint32_t>(graph_.ops().size());
    order_.resize(groups_.size());
    std::iota(order_.begin(), order_.end(), 0u);
    std::stable_sort(order_.begin(), order_.end(),
                     [&](uint32_t a, uint32_t b) { return hops_[a] < hops_[b]; });
  }

  // In the order in which stages run, so that the first reader of a stage is the one that waits.
  void find_crossings() {
    for (const uint32_t g : order_)
      for (uint32_t i = groups_[g].begin; i < groups_[g].end; ++i)
        for (const ValueId input : graph_.ops()[i].inputs) {
          if (!input.valid() || copied_[producer(input)]) continue;
          if (stage_of_op_[producer(input)] != stage_of_op_[i])
            crossings_.push_back({input.index, stage_of_op_[i], g});
        }
    std::stable_sort(crossings_.begin(), crossings_.end(), [](const Crossing& a, const Crossing& b) {
      return std::tie(a.value, a.to_stage) < std::tie(b.value, b.to_stage);
    });
    crossings_.erase(std::unique(crossings_.begin(), crossings_.end(),
                                 [](const Crossing& a, const Crossing& b) {
                                   return a.value == b.value && a.to_stage == b.to_stage;
                                 }),
                     crossings_.end());
  }

  void make_segments() {
    levels_.resize(stages_);
    std::vector<std::vector<double>> seconds(stages_);
    for (const uint32_t g : order_) {
      const uint32_t stage = stage_of_op_[groups_[g].begin];
      if (levels_[stage].empty() || levels_[stage].back() != hops_[g]) {
        levels_[stage].push_back(hops_[g]);
        seconds[stage].push_back(0);
        pipeline_.stages[stage].segments.push_back({{}, groups_[g].phase == Phase::Backward});
      }
      seconds[stage].back() += seconds_of(groups_[g], rates_[stage]);
      if (groups_[g].phase == Phase::Forward && groups_[g].has_kernel)
        pipeline_.stages[stage].ops += groups_[g].end - groups_[g].begin;
    }
    for (uint32_t stage = 0; stage < stages_; ++stage)
      for (size_t k = 0; k < seconds[stage].size(); ++k)
        pipeline_.stages[stage].segments[k].compute = to_duration(seconds[stage][k]);
  }

  uint32_t segment_of(uint32_t stage, uint32_t group) const {
    const auto& levels = levels_[stage];
    return static_cast<uint32_t>(std::lower_bound(levels.begin(), levels.end(), hops_[group]) -
                                 levels.begin());
  }

  void make_messages() {
    std::map<std::tuple<uint32_t, uint32_t, uint32_t, uint32_t>, int64_t> bytes;
    for (const Crossing& crossing : crossings_) {
      const uint32_t from_op = producer({crossing.value});
      const uint32_t from = stage_of_op_[from_op];
      bytes[{from, segment_of(from, group_of_op_[from_op]), crossing.to_stage,
             segment_of(crossing.to_stage, crossing.reader_group)}] +=
          graph_.spec({crossing.value}).bytes().value;
    }
    for (const auto& [key, size] : bytes)
      pipeline_.messages.push_back(
          {std::get<0>(key), std::get<1>(key), std::get<2>(key), std::get<3>(key), {size}});
  }

  // Adding up gradients is part of the segment that makes them.
  void add_optimizer() {
    std::vector<double> update(stages_, 0);
    for (const auto& output : graph_.outputs()) {
      if (output.role != OutputRole::Gradient) continue;
      const uint32_t op = producer(output.value), stage = stage_of_op_[op];
      const Bytes size = graph_.spec(output.value).bytes();
      update[stage] += update_seconds(size, options_.optimizer_slots, rates_[stage]);
      if (options_.microbatches > 1)
        pipeline_.stages[stage].segments[segment_of(stage, group_of_op_[op])].compute +=
            to_duration(accumulate_seconds(size, rates_[stage]));
    }
    for (uint32_t stage = 0; stage < stages_; ++stage)
      pipeline_.stages[stage].update = to_duration(update[stage]);
  }

  void add_memory();
  std::vector<int64_t> microbatch_peaks() const;

  const Graph& graph_;
  std::span<const GroupCost> groups_;
  std::span<const uint32_t> stage_of_op_;
  std::span<const Rates> rates_;
  const PipelineOptions& options_;
  uint32_t stages_;
  std::vector<uint32_t> group_of_op_;
  std::vector<bool> copied_;
  std::vector<uint32_t> hops_, order_;  // by group; groups in the order in which they run
  std::vector<Crossing> crossings_;
  std::vector<std::vector<uint32_t>> levels_;  // by stage: hops of its segments
  Pipeline pipeline_;
};

void PipelineBuilder::add_memory() {
  std::vector<int64_t> persistent(stages_, 0), widest(stages_, 0);
  const auto add = [&](uint32_t stage, ValueId value, int64_t times) {
    persistent[stage] += times * aligned(graph_.spec(value).bytes().value);
  };
  for (const auto& initializer : graph_.initializers())
    if (!copied_[producer(initializer.value)])
      add(stage_of_op_[producer(initializer.value)], initializer.value, 1);
  for (const auto& output : graph_.outputs())
    if (output.role == OutputRole::Gradient)
      add(stage_of_op_[producer(output.value)], output.value, 1 + options_.optimizer_slots);
  // Copied leaves, once in each stage that reads them.
  std::vector<uint64_t> copies;
  for (uint32_t i = 0; i < graph_.ops().size(); ++i)
    for (const ValueId input : graph_.ops()[i].inputs)
      if (input.valid() && copied_[producer(input)])
        copies.push_back((uint64_t{input.index} << 32) | stage_of_op_[i]);
  std::sort(copies.begin(), copies.end());
  copies.erase(std::unique(copies.begin(), copies.end()), copies.end());
  for (const uint64_t copy : copies)
    add(static_cast<uint32_t>(copy), ValueId{static_cast<uint32_t>(copy >> 32)}, 1);
  for (const GroupCost& group : groups_) {
    if (!group.has_kernel) continue;
    // A convolution's weight gradient is summed up in pieces, each as large as the weights.
    const Op& op = graph_.ops()[group.begin];
    const int64_t pieces =
        op.kind == OpKind::ConvGradWeight ? 4 * graph_.spec(op.outputs[0]).bytes().value : int64_t{0};
    int64_t& most = widest[stage_of_op_[group.begin]];
    most = std::max(most, group.moved.value + pieces);
  }
  const std::vector<int64_t> peaks = microbatch_peaks();
  for (uint32_t stage = 0; stage < stages_; ++stage) {
    pipeline_.stages[stage].persistent = {persistent[stage] + widest[stage]};  // the widest kernel's scratch
    pipeline_.stages[stage].microbatch = {peaks[stage] + peaks[stage] / 5};
  }
  for (const Message& message : pipeline_.messages) {  // on the way out and in
    pipeline_.stages[message.from_stage].microbatch += message.bytes;
    pipeline_.stages[message.to_stage].microbatch += message.bytes;
  }
}

// By stage: the most bytes that live at once, as the executor's memory plan has it: received values from the
// beginning, sent ones and outputs to the end, others from their group to their last reader.
std::vector<int64_t> PipelineBuilder::microbatch_peaks() const {
  const size_t values = graph_.values().size();
  std::vector<uint32_t> time_of_group(groups_.size(), 0), clock(stages_, 0);
  for (const uint32_t g : order_) time_of_group[g] = clock[stage_of_op_[groups_[g].begin]]++;
  const auto time_of = [&](uint32_t op) { return time_of_group[group_of_op_[op]]; };

  // Views share the bytes of what they show, within a stage.
  std::vector<uint32_t> root(values);
  std::iota(root.begin(), root.end(), 0u);
  for (const Op& op : graph_.ops())
    if (!op.inputs.empty() && dag::is_view(graph_, op) &&
        stage_of_op_[producer(op.inputs[0])] == stage_of_op_[producer(op.outputs[0])])
      root[op.outputs[0].index] = root[op.inputs[0].index];

  std::vector<uint32_t> last(values, 0);
  std::vector<bool> outside(values, false),
      to_the_end(values, false);  // by root: whether it has memory at all
  for (uint32_t i = 0; i < graph_.ops().size(); ++i)
    for (const ValueId input : graph_.ops()[i].inputs) {
      if (!input.valid() || stage_of_op_[producer(input)] != stage_of_op_[i]) continue;
      const uint32_t r = root[input.index];
      last[r] = std::max(last[r], time_of(i));
      if (group_of_op_[producer(input)] != group_of_op_[i]) outside[r] = true;
    }
  for (const auto& output : graph_.outputs())
    (output.role == OutputRole::Gradient || output.role == OutputRole::StateUpdate
         ? outside
         : to_the_end)[root[output.value.index]] = true;
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> last_read;  // of received values
  for (const Crossing& crossing : crossings_) {
    to_the_end[root[crossing.value]] = true;
    last_read[{crossing.value, crossing.to_stage}] = 0;
  }
  if (!crossings_.empty())
    for (uint32_t i = 0; i < graph_.ops().size(); ++i)
      for (const ValueId input : graph_.ops()[i].inputs) {
        if (!input.valid() || stage_of_op_[producer(input)] == stage_of_op_[i]) continue;
        const auto at = last_read.find({input.index, stage_of_op_[i]});
        if (at != last_read.end()) at->second = std::max(at->second, time_of(i));
      }

  std::vector<std::vector<int64_t>> change(stages_);
  for (uint32_t stage = 0; stage < stages_; ++stage) change[stage].assign(clock[stage] + 2, 0);
  const auto live = [&](uint32_t stage, uint32_t first, uint32_t end, ValueId value) {
    const int64_t bytes = aligned(graph_.spec(value).bytes().value);
    change[stage][first] += bytes;
    change[stage][end + 1] -= bytes;
  };
  for (uint32_t v = 0; v < values; ++v) {
    const Op& op = graph_.producer({v});
    const uint32_t from = producer({v}), stage = stage_of_op_[from];
    if (root[v] != v || op.kind == OpKind::Initializer || op.kind == OpKind::Constant) continue;
    const bool alone = groups_[group_of_op_[from]].end - groups_[group_of_op_[from]].begin == 1;
    if (!outside[v] && !to_the_end[v] && !alone) continue;
    const uint32_t first = op.kind == OpKind::Input ? 0 : time_of(from);
    live(stage, first, to_the_end[v] ? clock[stage] : std::max(last[v], first), {v});
  }
  for (const auto& [key, time] : last_read) live(key.second, 0, time, {key.first});
  std::vector<int64_t> peaks(stages_, 0);
  for (uint32_t stage = 0; stage < stages_; ++stage) {
    int64_t bytes = 0;
    for (const int64_t delta : change[stage]) peaks[stage] = std::max(peaks[stage], bytes += delta);
  }
  return peaks;
}

}  // namespace

Pipeline make_pipeline(const Graph& graph, std::span<const GroupCost> groups,
                       std::span<const uint32_t> stage_of_op, std::span<const Rates> rates,
                       const PipelineOptions& options) {
  WEFT_CHECK(stage_of_op.size() == graph.ops().size());
  return PipelineBuilder(graph, groups, stage_of_op, rates, options).run();
}

}  // namespace weft::plan
