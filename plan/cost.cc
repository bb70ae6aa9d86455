#include "plan/cost.h"

#include <algorithm>

#include "dag/op_table.h"

namespace weft::plan {

using dag::Family;
using dag::Graph;
using dag::Op;
using dag::OpId;
using dag::OpKind;
using dag::Shape;
using dag::ValueId;

namespace {

constexpr double kLeastElements = 16;      // elements of an image, or a weight's outputs: less is as slow
constexpr int64_t kFewChannelsAGroup = 8;  // fill no vector

int64_t elements_from(const Shape& shape, size_t axis) {
  int64_t count = 1;
  for (size_t i = axis; i < shape.size(); ++i) count *= shape[i];
  return count;
}

// The share of the work that goes at the rate of what is small: a fixed part is taken to come beside what
// grows with the elements.
double small_share(int64_t elements, double small, double large) {
  const double count = std::max(kLeastElements, static_cast<double>(elements));
  return std::max(0.0, (1 / count - 1 / large) / (1 / small - 1 / large));
}

// How much longer a depthwise convolution takes that reads, or writes, more elements than it does work on: of
// nine taps, with which the rate is measured, as many times as elements are moved, of more taps less.
double spread_of(int64_t a, int64_t b, int64_t taps) {
  const double moved =
      static_cast<double>(a + b) / (2 * static_cast<double>(std::max<int64_t>(1, std::min(a, b))));
  return 1 + (moved - 1) * std::min(1.0, 9.0 / static_cast<double>(std::max<int64_t>(1, taps)));
}

void classify_convolution(const Graph& graph, const Op& op, GroupCost& cost) {
  const bool of_weights = op.kind == OpKind::ConvGradWeight, forward = op.kind == OpKind::Conv;
  const Shape& weights = graph.spec(of_weights ? op.outputs[0] : op.inputs[1]).shape;
  const Shape& made = graph.spec(forward ? op.outputs[0] : op.inputs[of_weights ? 1 : 0]).shape;
  if (op.attributes.get_int(dag::Attr::Groups, 1) > 1 && weights[1] < kFewChannelsAGroup) {
    cost.unit = Unit::Depthwise;
    cost.small = small_share(elements_from(made, 2), kSmallImage, kLargeImage);
    const ValueId other = of_weights ? op.inputs[1] : op.outputs[0];
    cost.spread = spread_of(graph.spec(op.inputs[0]).element_count(), graph.spec(other).element_count(),
                            elements_from(weights, 2));
    return;
  }
  cost.small = small_share(made[0] * elements_from(made, 2), kSmallOutputs, kLargeOutputs);
  if (elements_from(weights, 2) == 1)
    cost.unit = Unit::Pointwise;
  else
    cost.unit = of_weights ? Unit::ConvolutionWeights : Unit::Convolution;
}

void classify(const Graph& graph, const Op& first, GroupCost& cost) {
  const dag::OpRow& row = dag::op_table().row(first.kind);
  if (row.work == dag::Work::Convolution) return classify_convolution(graph, first, cost);
  if (row.work == dag::Work::MatMul)
    cost.unit = Unit::MatMul;
  else if (row.family == Family::Normalisation || row.family == Family::Softmax)
    cost.unit = Unit::Normalisation;
  else if (row.family == Family::Pooling)
    cost.unit = Unit::Pooling;
  else if (row.family == Family::Shape || row.family == Family::Reduction)
    cost.unit = Unit::Shape;
}

// Through both measured points, in proportion before and behind: it never falls.
double seconds_of_bytes(double bytes, const UnitRates& rates) {
  const double small = kSmallBytes / rates.small_bytes_per_second;
  const double large = std::max(small, kLargeBytes / rates.bytes_per_second);
  if (bytes <= kSmallBytes) return bytes / rates.small_bytes_per_second;
  if (bytes >= kLargeBytes) return bytes * (large / kLargeBytes);
  return small + (large - small) * (bytes - kSmallBytes) / (kLargeBytes - kSmallBytes);
}

double seconds_by_unit(const GroupCost& cost, const Rates& rates) {
  const UnitRates& unit = rates.of(cost.unit);
  const double large = 1 / unit.flops_per_second;
  const double more = std::max(0.0, 1 / unit.small_flops_per_second - large);
  return static_cast<double>(cost.matmul.value + cost.convolution.value) * cost.spread *
             (large + cost.small * more) +
         static_cast<double>(cost.arithmetic.value) / rates.of(Unit::Elementwise).flops_per_second +
         seconds_of_bytes(static_cast<double>(cost.moved.value), unit);
}

}  // namespace

GroupCost cost_of_group(const Graph& graph, std::span<const OpId> ops, std::span<const ValueId> inputs,
                        std::span<const ValueId> outputs) {
  GroupCost cost;
  if (ops.empty()) return cost;
  const Op& first = graph.op(ops.front());
  cost.begin = ops.front().index;
  cost.end = ops.back().index + 1;
  cost.phase = first.phase;
  if (first.inputs.empty() || (ops.size() == 1 && dag::is_view(graph, first))) return cost;
  cost.has_kernel = true;
  for (const OpId id : ops) {
    const dag::Work work = dag::op_table().row(graph.op(id).kind).work;
    FlopCount& sum = work == dag::Work::MatMul        ? cost.matmul
                     : work == dag::Work::Convolution ? cost.convolution
                                                      : cost.arithmetic;
    sum += op_flops(graph, graph.op(id));
  }
  classify(graph, first, cost);
  for (const ValueId output : outputs) cost.moved += graph.spec(output).bytes();
  for (const ValueId input : inputs) {
    const bool part =
        ops.size() == 1 && input == first.inputs[0] && dag::op_table().row(first.kind).reads_part;
    cost.moved += part ? std::min(graph.spec(input).bytes(), graph.spec(first.outputs[0]).bytes())
                       : graph.spec(input).bytes();
  }
  return cost;
}

std::vector<GroupCost> group_costs(const Graph& graph) {
  const auto count = static_cast<uint32_t>(graph.ops().size());
  std::vector<uint32_t> group_of_op(count);
  uint32_t groups = 0;
  for (uint32_t i = 0; i < count; ++i) {
    const dag::GroupId own = graph.ops()[i].group;
    const bool joins = i > 0 && own.valid() && graph.ops()[i - 1].group == own;
    group_of_op[i] = joins ? groups - 1 : groups++;
  }
  std::vector<bool> leaves_group(graph.values().size(), false);
  for (const auto& output : graph.outputs()) leaves_group[output.value.index] = true;
  for (uint32_t i = 0; i < count; ++i)
    for (const ValueId input : graph.ops()[i].inputs)
      if (input.valid() && group_of_op[graph.value(input).producer.index] != group_of_op[i])
        leaves_group[input.index] = true;

  std::vector<GroupCost> costs;
  costs.reserve(groups);
  std::vector<OpId> ops;
  std::vector<ValueId> inputs, outputs;
  for (uint32_t begin = 0; begin < count;) {
    uint32_t end = begin;
    ops.clear(), inputs.clear(), outputs.clear();
    for (; end < count && group_of_op[end] == group_of_op[begin]; ++end) {
      ops.push_back(OpId{end});
      const Op& op = graph.ops()[end];
      for (const ValueId input : op.inputs)
        if (input.valid() && graph.value(input).producer.index < begin &&
            std::find(inputs.begin(), inputs.end(), input) == inputs.end())
          inputs.push_back(input);
      for (const ValueId output : op.outputs)
        if (leaves_group[output.index]) outputs.push_back(output);
    }
    costs.push_back(cost_of_group(graph, ops, inputs, outputs));
    begin = end;
  }
  return costs;
}

double seconds_of(const GroupCost& cost, const Rates& rates) {
  if (!cost.has_kernel) return 0;
  if (rates.by_unit()) return seconds_by_unit(cost, rates) + rates.kernel_seconds;
  const double compute = static_cast<double>(cost.matmul.value) / rates.matmul_flops_per_second +
                         static_cast<double>(cost.convolution.value) / rates.convolution_flops_per_second;
  const double move = static_cast<double>(cost.moved.value) / rates.memory_bytes_per_second;
  return std::max(compute, move) + rates.kernel_seconds;
}

double update_seconds(Bytes parameter, const dag::BesideParameter& beside, const Rates& rates) {
  // Parameter in and out, gradient in, slots in and out. Slots in eight bits are fewer bytes, and more work.
  const double passes = 3 + 2.0 * beside.slots;
  const double bandwidth =
      rates.by_unit() ? rates.of(Unit::Update).bytes_per_second : rates.memory_bytes_per_second;
  return passes * static_cast<double>(parameter.value) / bandwidth / beside.among + rates.kernel_seconds;
}

double accumulate_seconds(Bytes parameter, const Rates& rates) {
  const double moved = 3.0 * static_cast<double>(parameter.value);
  if (rates.by_unit()) return seconds_of_bytes(moved, rates.of(Unit::Elementwise)) + rates.kernel_seconds;
  return moved / rates.memory_bytes_per_second + rates.kernel_seconds;
}

}  // namespace weft::plan
