#include "plan/pipeline.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "dag/copied_bytes.h"
#include "dag/cut.h"
#include "dag/lifetimes.h"
#include "dag/once_a_step.h"
#include "dag/op_table.h"
#include "dag/recompute.h"
#include "plan/compression.h"

namespace weft::plan {

using dag::Graph;
using dag::Op;
using dag::OpKind;
using dag::OutputRole;
using dag::Phase;
using dag::ValueId;

bool may_be_infinite(const Graph& graph, ValueId value) {
  while (dag::is_view(graph, graph.producer(value))) value = graph.producer(value).inputs[0];
  const Op& op = graph.producer(value);
  if (op.kind != OpKind::Where && op.kind != OpKind::Add) return false;
  return std::any_of(op.inputs.begin(), op.inputs.end(), [&](ValueId input) {
    if (!input.valid() || graph.producer(input).kind != OpKind::Constant) return false;
    const dag::Tensor& constant = graph.constant(graph.producer(input));
    if (constant.dtype() != dag::DType::F32) return false;
    const auto numbers = constant.as<float>();
    return std::any_of(numbers.begin(), numbers.end(), [](float x) { return !std::isfinite(x); });
  });
}

namespace {

constexpr int64_t kAlignment = 64;

// TLS 1.3 adds 22 bytes to each record of 16 KiB; a tensor's header and its frames' heads are some 256.
constexpr int64_t kRecord = 16384, kRecordOverhead = 22, kHeads = 256;
// What one thread encrypts or decrypts, with its way through the sockets (bench/net.cc: 1.28 GB/s).
constexpr double kTlsBytesPerSecond = 1.28e9;

Duration to_duration(double seconds) {
  return Duration(static_cast<int64_t>(std::ceil(std::min(seconds, 1e6) * 1e9)));
}
int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// The groups of one class that run on its stages, in the order in which each stage runs them.
struct ClassWork {
  uint32_t device_class = 0;
  const Model::Class* of = nullptr;
  std::vector<uint32_t> order;        // groups
  std::vector<uint32_t> group_of_op;  // by op of the lowered graph
  std::vector<uint32_t> stage_of_op;  // likewise
  std::vector<bool> repeatable;       // by value, where a stage recomputes
};

// The most bytes that live at once in a stage, as the executor's memory plan has it: from one task to
// another, in each microbatch in flight; within one task.
struct Peaks {
  int64_t arena = 0, scratch = 0;
  int64_t step = 0;  // of all microbatches: made once a step
};

// By value that others are views of: the last segment of its stage in which an op of the forward pass reads
// it.
std::vector<uint32_t> last_forward_reads(const Graph& graph, const dag::RunOrder& order,
                                         const dag::Lifetimes& lifetimes) {
  std::vector<uint32_t> last(graph.values().size(), 0);
  for (uint32_t i = 0; i < graph.ops().size(); ++i) {
    if (graph.ops()[i].phase != dag::Phase::Forward) continue;
    for (const ValueId input : graph.ops()[i].inputs) {
      if (!input.valid() || order.stage_of_op[graph.value(input).producer.index] != order.stage_of_op[i])
        continue;
      uint32_t& segment = last[lifetimes.root[input.index]];
      segment = std::max(segment, order.segment_of_op[i]);
    }
  }
  return last;
}

// What an op's result takes over is gone when that is there: logits, where their gradient comes to lie.
void end_where_taken_over(const Graph& graph, const dag::RunOrder& order, dag::Lifetimes& lifetimes) {
  for (uint32_t i = 0; i < graph.ops().size(); ++i) {
    const dag::Op& op = graph.ops()[i];
    const int operand = dag::op_table().row(op.kind).in_place;
    if (operand < 0 || order.stage_of_op[i] == dag::RunOrder::kNone) continue;
    const uint32_t root = lifetimes.root[op.inputs[static_cast<size_t>(operand)].index],
                   time = order.time_of_group[order.group_of_op[i]];
    const dag::Op& maker = graph.producer(ValueId{root});
    const bool is_passing = !maker.inputs.empty() &&
                            order.stage_of_op[graph.value({root}).producer.index] == order.stage_of_op[i];
    dag::Lifetime& lifetime = lifetimes.of[root];
    const bool as_large = graph.spec({root}).bytes() == graph.spec(op.outputs[0]).bytes();
    if (is_passing && as_large && lifetime.last == time && lifetime.first < time) --lifetime.last;
  }
}

// Writes them for each stage of the class.
void add_peaks(const ClassWork& work, const dag::Cut& cut, std::span<const StageDevice> devices,
               std::vector<Peaks>& peaks) {
  const dag::Lowered& lowered = *work.of->lowered;
  const Graph& graph = lowered.graph;
  const auto ours = [&](uint32_t stage) { return devices[stage].device_class == work.device_class; };
  dag::RunOrder order{.group_of_op = work.group_of_op,
                      .time_of_group = std::vector<uint32_t>(work.of->groups.size(), 0),
                      .stage_of_op = work.stage_of_op,
                      .ends = std::vector<uint32_t>(devices.size(), 0),
                      .segment_of_op = {}};
  for (const uint32_t g : work.order)
    order.time_of_group[g] = order.ends[work.stage_of_op[work.of->groups[g].begin]]++;
  for (uint32_t i = 0; i < graph.ops().size(); ++i) {
    if (graph.ops()[i].inputs.empty()) order.group_of_op[i] = dag::RunOrder::kNone;
    if (!ours(order.stage_of_op[i])) order.stage_of_op[i] = dag::RunOrder::kNone;
    order.segment_of_op.push_back(cut.segment_of_op[lowered.source_op[i].index]);
  }
  std::vector<ValueId> sent;
  std::vector<dag::Received> received;
  for (const dag::Crossing& crossing : cut.crossings) {
    const ValueId value = lowered.value_of[crossing.value.index];
    if (ours(crossing.from_stage)) sent.push_back(value);
    if (ours(crossing.to_stage)) received.push_back({value, crossing.to_stage, crossing.to_segment});
  }
  dag::Lifetimes found = dag::find_lifetimes(graph, order, sent, std::move(received));
  end_where_taken_over(graph, order, found);
  const std::vector<uint32_t> read_forward = last_forward_reads(graph, order, found);
  std::vector<std::vector<Peaks>> change(devices.size());
  for (uint32_t stage = 0; stage < devices.size(); ++stage) change[stage].resize(order.ends[stage] + 2);
  const auto live = [&](uint32_t stage, ValueId value, dag::Lifetime lifetime, bool is_given) {
    bool in_arena = lifetime.crosses_segments(), in_scratch = !in_arena;
    const uint32_t forward = cut.stages[stage].forward_segments;
    if (devices[stage].recomputes && is_given) {
      // Of forward: until backward has read it again. Of backward: before the copies.
      in_arena = in_arena || lifetime.first_segment < forward;
      in_scratch = !in_arena;
      if (lifetime.first_segment < forward) lifetime.last = order.ends[stage];
      if (in_scratch) lifetime.first = 0;
    } else if (devices[stage].recomputes && work.repeatable[value.index]) {
      // Within a task of forward, and again within one of backward, no longer than if both were one. A later
      // task that reads it in forward finds it kept.
      in_arena = in_arena && lifetime.first_segment < read_forward[value.index];
      in_scratch = true;
    }
    const int64_t bytes = aligned(graph.spec(value).bytes().value);
    const auto add = [&](int64_t Peaks::*to) {
      change[stage][lifetime.first].*to += bytes;
      change[stage][lifetime.last + 1].*to -= bytes;
    };
    if (in_arena) add(&Peaks::arena);
    if (in_scratch) add(&Peaks::scratch);
  };
  const std::vector<bool> runs_once = dag::once_a_step(graph);
  for (uint32_t v = 0; v < graph.values().size(); ++v) {
    const uint32_t from = graph.value({v}).producer.index;
    const OpKind kind = graph.ops()[from].kind;
    if (found.root[v] != v || !found.of[v].needs_memory() ||
        order.stage_of_op[from] == dag::RunOrder::kNone || kind == OpKind::Initializer ||
        kind == OpKind::Constant)
      continue;
    if (runs_once[from]) {
      peaks[order.stage_of_op[from]].step += aligned(graph.spec({v}).bytes().value);
      continue;
    }
    live(order.stage_of_op[from], {v}, found.of[v], kind == OpKind::Input);
  }
  for (const dag::Received& one : found.received) live(one.stage, one.value, one.lifetime, true);
  for (uint32_t stage = 0; stage < devices.size(); ++stage) {
    Peaks bytes;
    for (const Peaks& delta : change[stage]) {
      peaks[stage].arena = std::max(peaks[stage].arena, bytes.arena += delta.arena);
      peaks[stage].scratch = std::max(peaks[stage].scratch, bytes.scratch += delta.scratch);
    }
  }
}

class PipelineBuilder {
 public:
  PipelineBuilder(const Model& model, std::span<const uint32_t> stage_of_op,
                  std::span<const StageDevice> devices, const PipelineOptions& options, dag::Cut cut)
      : model_(model),
        graph_(*model.graph),
        stage_of_op_(stage_of_op),
        devices_(devices),
        options_(options),
        cut_(std::move(cut)),
        stages_(static_cast<uint32_t>(devices.size())) {}

  Pipeline run() {
    pipeline_.stages.resize(stages_);
    collect_work();
    make_segments();
    make_messages();
    add_data();
    add_optimizer();
    add_memory();
    return std::move(pipeline_);
  }

 private:
  uint32_t producer(ValueId value) const { return graph_.value(value).producer.index; }
  uint32_t source(const ClassWork& work, uint32_t op) const { return work.of->lowered->source_op[op].index; }

  void collect_work() {
    for (uint32_t c = 0; c < model_.classes.size(); ++c) {
      if (std::none_of(devices_.begin(), devices_.end(),
                       [&](const StageDevice& device) { return device.device_class == c; }))
        continue;
      ClassWork& work = work_.emplace_back();
      work.device_class = c;
      work.of = &model_.classes[c];
      const size_t ops = work.of->lowered->graph.ops().size();
      work.group_of_op.resize(ops);
      for (uint32_t i = 0; i < ops; ++i) work.stage_of_op.push_back(stage_of_op_[source(work, i)]);
      for (uint32_t g = 0; g < work.of->groups.size(); ++g) {
        const GroupCost& group = work.of->groups[g];
        for (uint32_t i = group.begin; i < group.end; ++i) work.group_of_op[i] = g;
        if (devices_[work.stage_of_op[group.begin]].device_class == c) work.order.push_back(g);
      }
      std::stable_sort(work.order.begin(), work.order.end(), [&](uint32_t a, uint32_t b) {
        return segment_of(work, work.of->groups[a]) < segment_of(work, work.of->groups[b]);
      });
      if (std::any_of(devices_.begin(), devices_.end(), [](const StageDevice& on) { return on.recomputes; }))
        work.repeatable = dag::repeatable_values(work.of->lowered->graph);
    }
  }
  uint32_t segment_of(const ClassWork& work, const GroupCost& group) const {
    return cut_.segment_of_op[source(work, group.begin)];
  }

  void make_segments() {
    std::vector<std::vector<double>> seconds(stages_);
    for (uint32_t s = 0; s < stages_; ++s) seconds[s].assign(cut_.stages[s].segments, 0);
    for (const ClassWork& work : work_)
      for (const uint32_t g : work.order) {
        const GroupCost& group = work.of->groups[g];
        const uint32_t stage = work.stage_of_op[group.begin];
        seconds[stage][segment_of(work, group)] += seconds_of(group, devices_[stage].rates);
        if (group.phase == Phase::Forward && group.has_kernel)
          pipeline_.stages[stage].ops += group.end - group.begin;
      }
    std::vector<std::vector<double>> repeated(stages_);
    for (uint32_t s = 0; s < stages_; ++s) repeated[s].assign(cut_.stages[s].segments, 0);
    for (const ClassWork& work : work_) add_repeated(work, repeated);
    for (uint32_t s = 0; s < stages_; ++s)
      for (uint32_t k = 0; k < seconds[s].size(); ++k)
        pipeline_.stages[s].segments.push_back({to_duration(seconds[s][k] + repeated[s][k]),
                                                k >= cut_.stages[s].forward_segments,
                                                to_duration(repeated[s][k])});
  }

  // The forward groups that dag::recompute has each backward segment repeat.
  void add_repeated(const ClassWork& work, std::vector<std::vector<double>>& seconds) const {
    std::vector<std::vector<uint32_t>> groups_of_stage(stages_);
    for (const uint32_t g : work.order)
      if (const uint32_t stage = work.stage_of_op[work.of->groups[g].begin]; devices_[stage].recomputes)
        groups_of_stage[stage].push_back(g);
    std::vector<bool> repeats(work.of->groups.size(), false);
    for (uint32_t stage = 0; stage < stages_; ++stage)
      for (uint32_t k = cut_.stages[stage].forward_segments; k < cut_.stages[stage].segments; ++k) {
        for (const uint32_t g : groups_of_stage[stage]) repeats[g] = false;
        for (size_t i = groups_of_stage[stage].size(); i-- > 0;) {
          const uint32_t g = groups_of_stage[stage][i];
          const GroupCost& group = work.of->groups[g];
          if (repeats[g]) seconds[stage][k] += seconds_of(group, devices_[stage].rates);
          if (repeats[g] || segment_of(work, group) == k) mark_read(work, group, stage, repeats);
        }
      }
  }
  void mark_read(const ClassWork& work, const GroupCost& group, uint32_t stage,
                 std::vector<bool>& repeats) const {
    const Graph& graph = work.of->lowered->graph;
    for (uint32_t i = group.begin; i < group.end; ++i)
      for (const ValueId input : graph.ops()[i].inputs) {
        if (!input.valid() || !work.repeatable[input.index]) continue;
        const uint32_t maker = graph.value(input).producer.index;
        if (work.stage_of_op[maker] == stage && work.group_of_op[maker] != work.group_of_op[i])
          repeats[work.group_of_op[maker]] = true;
      }
  }

  void make_messages() {
    std::map<std::tuple<uint32_t, uint32_t, uint32_t, uint32_t, bool>, Message> messages;
    for (const dag::Crossing& c : cut_.crossings) {
      const bool backward = graph_.producer(c.value).phase == Phase::Backward;
      Message& message = messages[{c.from_stage, c.from_segment, c.to_stage, c.to_segment, backward}];
      const dag::TensorSpec& spec = graph_.spec(c.value);
      message.dense += spec.bytes();
      if (takes_codec(spec) && !may_be_infinite(graph_, c.value))
        message.floats.push_back(spec.element_count());
    }
    for (auto& [key, message] : messages) {
      std::tie(message.from_stage, message.from_segment, message.to_stage, message.to_segment,
               message.backward) = key;
      message.bytes = message.dense;
      message.framing = framing_of(message.bytes);
      pipeline_.messages.push_back(std::move(message));
    }
    for (const Message& message : pipeline_.messages) {
      serve_link(message.from_stage, message.from_segment, message.bytes);
      serve_link(message.to_stage, message.to_segment, message.bytes);
    }
  }
  // Where the threads that compute are those that encrypt.
  void serve_link(uint32_t stage, uint32_t segment, Bytes bytes) {
    if (const uint32_t threads = devices_[stage].threads; threads > 0)
      pipeline_.stages[stage].segments[segment].compute +=
          to_duration(static_cast<double>(bytes.value) / (kTlsBytesPerSecond * threads));
  }

  // Microbatches of data come from the broker.
  void add_data() {
    for (uint32_t i = 0; i < graph_.ops().size(); ++i) {
      if (graph_.ops()[i].kind != OpKind::Input) continue;
      StageWork& stage = pipeline_.stages[stage_of_op_[i]];
      const uint32_t segment = cut_.segment_of_op[i];
      if (segment >= stage.segments.size()) continue;  // nobody reads it
      stage.data_segment = stage.data.value > 0 ? std::min(stage.data_segment, segment) : segment;
      const int64_t bytes = graph_.spec(graph_.ops()[i].outputs[0]).bytes().value;
      stage.data += Bytes{bytes} + framing_of({bytes});
      serve_link(stage_of_op_[i], segment, {bytes});
    }
  }

  // Adding up gradients is part of the segment that makes them.
  void add_optimizer() {
    std::vector<double> update(stages_, 0);
    for (const auto& output : graph_.outputs()) {
      if (output.role != OutputRole::Gradient) continue;
      const uint32_t op = producer(output.value), stage = stage_of_op_[op];
      const Bytes size = graph_.spec(output.value).bytes();
      update[stage] += update_seconds(size, options_.beside(), devices_[stage].rates);
      if (options_.microbatches > 1)
        pipeline_.stages[stage].segments[cut_.segment_of_op[op]].compute +=
            to_duration(accumulate_seconds(size, devices_[stage].rates));
    }
    for (uint32_t stage = 0; stage < stages_; ++stage)
      pipeline_.stages[stage].update = to_duration(update[stage]);
  }

  // What lasts: initializers, gradients, optimizer slots; copied leaves once in each stage that reads them.
  // What snapshots hold is the same without gradients and copied leaves, which never change.
  std::vector<int64_t> persistent_bytes() {
    std::vector<int64_t> persistent(stages_, 0);
    const auto add = [&](uint32_t stage, int64_t on_device, int64_t on_host) {
      persistent[stage] += on_device;
      pipeline_.stages[stage].host += Bytes{on_host};
    };
    const auto bytes_of = [&](ValueId value) { return aligned(graph_.spec(value).bytes().value); };
    const std::vector<bool> copied = dag::copied_leaves(graph_);
    for (const auto& initializer : graph_.initializers())
      if (!copied[producer(initializer.value)])
        add(stage_of_op_[producer(initializer.value)], bytes_of(initializer.value),
            bytes_of(initializer.value));
    for (const auto& output : graph_.outputs()) {
      if (output.role != OutputRole::Gradient) continue;
      const dag::TensorSpec& parameter = graph_.spec(output.value);
      const int64_t slots = bytes_beside(parameter, options_.beside());
      const int64_t agreed = bytes_beside(parameter, {.whole = options_.agreed_slots});
      add(stage_of_op_[producer(output.value)],
          options_.gradient_sums * bytes_of(output.value) + slots - agreed, slots + agreed);
    }
    std::vector<uint64_t> copies;
    for (uint32_t i = 0; i < graph_.ops().size(); ++i)
      for (const ValueId input : graph_.ops()[i].inputs)
        if (input.valid() && copied[producer(input)])
          copies.push_back((uint64_t{input.index} << 32) | stage_of_op_[i]);
    std::sort(copies.begin(), copies.end());
    copies.erase(std::unique(copies.begin(), copies.end()), copies.end());
    for (const uint64_t copy : copies)
      add(static_cast<uint32_t>(copy), bytes_of(ValueId{static_cast<uint32_t>(copy >> 32)}), 0);
    return persistent;
  }

  // The widest kernel's scratch.
  std::vector<int64_t> workspace_bytes() const {
    std::vector<int64_t> widest(stages_, 0);
    for (const ClassWork& work : work_)
      for (const uint32_t g : work.order) {
        const GroupCost& group = work.of->groups[g];
        int64_t& most = widest[work.stage_of_op[group.begin]];
        most = std::max(most, workspace_of(*work.of, group));
      }
    return widest;
  }

  void add_memory() {
    const std::vector<int64_t> persistent = persistent_bytes(), workspace = workspace_bytes();
    const std::vector<Bytes> copied = dag::copied_bytes(graph_, options_.beside(), stage_of_op_, stages_);
    std::vector<Peaks> peaks(stages_);
    for (const ClassWork& work : work_) add_peaks(work, cut_, devices_, peaks);
    const auto with_gaps = [](int64_t bytes) { return bytes + bytes / 5; };
    for (uint32_t stage = 0; stage < stages_; ++stage) {
      pipeline_.stages[stage].persistent = {persistent[stage] + peaks[stage].step + workspace[stage] +
                                            with_gaps(peaks[stage].scratch)};
      pipeline_.stages[stage].microbatch = {with_gaps(peaks[stage].arena)};
      pipeline_.stages[stage].copied = copied[stage];
    }
    for (const Message& message : pipeline_.messages) {  // on the way out and in
      pipeline_.stages[message.from_stage].microbatch += message.bytes;
      pipeline_.stages[message.to_stage].microbatch += message.bytes;
    }
  }

  const Model& model_;
  const Graph& graph_;
  std::span<const uint32_t> stage_of_op_;
  std::span<const StageDevice> devices_;
  const PipelineOptions& options_;
  dag::Cut cut_;
  uint32_t stages_;
  std::vector<ClassWork> work_;  // of the classes that the stages are of
  Pipeline pipeline_;
};

}  // namespace

int64_t bytes_beside(const dag::TensorSpec& parameter, const dag::BesideParameter& beside) {
  const dag::BesideParameter slot{.slots = 1, .type = beside.type}, whole{.whole = 1};
  const int64_t slots = beside.slots * aligned(slot.bytes(parameter));
  return (slots + beside.among - 1) / beside.among + beside.whole * aligned(whole.bytes(parameter));
}

Bytes framing_of(Bytes bytes) { return {kHeads + (bytes.value / kRecord + 1) * kRecordOverhead}; }

Duration StageWork::busy(uint32_t microbatches) const {
  double computing = 0;
  for (const Segment& segment : segments) computing += static_cast<double>(segment.compute.count());
  const double all = computing * microbatches + static_cast<double>(update.count());
  return Duration(static_cast<int64_t>(std::min(all, 9e18)));
}

Result<Pipeline> make_pipeline(const Model& model, std::span<const uint32_t> stage_of_op,
                               std::span<const StageDevice> devices, const PipelineOptions& options) {
  std::vector<const dag::Lowered*> classes;
  std::vector<uint32_t> class_of_stage;
  classes.reserve(model.classes.size());
  for (const Model::Class& of : model.classes) classes.push_back(of.lowered.get());
  for (const StageDevice& device : devices) class_of_stage.push_back(device.device_class);
  WEFT_TRY(dag::Cut cut, dag::cut({model.graph, stage_of_op, classes, class_of_stage}));
  return PipelineBuilder(model, stage_of_op, devices, options, std::move(cut)).run();
}

}  // namespace weft::plan
