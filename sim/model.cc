#include "sim/model.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "base/check.h"
#include "dag/autodiff.h"
#include "dag/loss.h"
#include "dag/lower.h"
#include "dag/op_table.h"
#include "dag/split.h"
#include "plan/follow.h"

namespace weft::sim {

using dag::Graph;
using dag::OutputRole;
using dag::ValueId;
using proto::ProgramKind;

namespace {

constexpr int64_t kClasses = 10;

template <typename T>
T sure(Result<T> result) {
  WEFT_CHECK(result.has_value());
  return std::move(*result);
}

std::string layer_name(uint32_t layer) { return "layer" + std::to_string(layer) + ".weight"; }

Graph chain(const JobSpec& job) {
  dag::GraphBuilder b(dag::op_table());
  ValueId x = b.input("x", {dag::DType::F32, {job.microbatch_size, job.width}});
  for (uint32_t layer = 0; layer < job.layers; ++layer) {
    const bool last = layer + 1 == job.layers;
    const ValueId w =
        b.initializer(layer_name(layer), {dag::DType::F32, {job.width, last ? kClasses : job.width}},
                      dag::InitializerRole::Parameter);
    x = b.add(dag::OpKind::MatMul, {x, w});
    if (!last) x = b.add(dag::OpKind::Relu, {x});
  }
  b.output("logits", x, OutputRole::Prediction);
  return b.finish();
}

// By op of a forward graph: the layer it belongs to.
std::vector<uint32_t> layers_of(const Graph& graph, uint32_t layers) {
  std::vector<uint32_t> layer_of(graph.ops().size(), 0);
  uint32_t layer = 0;
  for (uint32_t o = 0; o < graph.ops().size(); ++o) {
    const dag::Op& op = graph.ops()[o];
    if (op.kind == dag::OpKind::Initializer)
      for (uint32_t l = 0; l < layers; ++l)
        if (graph.value(op.outputs[0]).name == layer_name(l)) layer = l;
    layer_of[o] =
        op.kind == dag::OpKind::Input && graph.value(op.outputs[0]).name != "x" ? layers - 1 : layer;
  }
  return layer_of;
}

std::vector<uint32_t> stages_of(const std::vector<uint32_t>& layer_of, const JobSpec& job) {
  std::vector<uint32_t> stages;
  for (const uint32_t layer : layer_of) {
    const bool wrapped = job.wraps && layer + 1 == job.layers && job.stages > 1;
    const uint32_t layers = job.wraps && job.stages > 1 ? job.layers - 1 : job.layers;
    stages.push_back(wrapped ? 0 : layer * job.stages / layers);
  }
  return stages;
}

// All stages are of one class, that of the peers' devices.
broker::LoweredGraphs lowered(const Graph& graph) {
  return {std::make_shared<const dag::Lowered>(dag::lower_traced(graph, dag::op_table(), {}))};
}

ModelGraphs::Program cut(const Graph& graph, ProgramKind kind, const std::vector<uint32_t>& stage_of_op,
                         uint32_t stages) {
  ModelGraphs::Program program;
  program.graph = std::make_shared<const Graph>(graph);
  const broker::LoweredGraphs classes = lowered(graph);
  const auto whole = std::make_shared<const Graph>(classes.front()->graph);
  program.whole =
      std::make_shared<const HashProgram>(whole, std::vector<uint32_t>(whole->ops().size(), 0), 1);
  plan::Plan plan;
  plan.stages.resize(stages);
  program.pieces =
      sure(broker::cut_program(kind, graph, plan, stage_of_op, classes, std::vector<uint32_t>(stages, 0)));
  return program;
}

std::unordered_map<const Graph*, std::shared_ptr<const HashProgram>>& compiled() {
  static std::unordered_map<const Graph*, std::shared_ptr<const HashProgram>> programs;
  return programs;
}

std::shared_ptr<const ModelGraphs> make_graphs(const JobSpec& job) {
  auto graphs = std::make_shared<ModelGraphs>();
  graphs->stage_count = job.stages;
  const Graph model = chain(job);
  if (job.predicts) {
    graphs->programs[ProgramKind::Predict] =
        cut(model, ProgramKind::Predict, stages_of(layers_of(model, job.layers), job), job.stages);
  } else {
    const dag::LossSpec loss{.type = dag::LossType::CrossEntropy,
                             .prediction = "logits",
                             .target = "y",
                             .axis = {},
                             .ignore_index = {}};
    const dag::TermColumns columns{.target = {dag::DType::I64, {job.microbatch_size}}};
    const auto forward =
        sure(dag::attach_training_loss(model, {&loss, 1}, {&columns, 1}, job.microbatches, dag::op_table()));
    const Graph train = sure(dag::differentiate(forward.graph, dag::op_table()));
    const auto stage_of_op = dag::stages_by_origin(train, stages_of(layers_of(train, job.layers), job));
    graphs->programs[ProgramKind::Train] = cut(train, ProgramKind::Train, stage_of_op, job.stages);
    for (const auto& initializer : train.initializers())
      if (train.find_output(OutputRole::Gradient, initializer.name))
        graphs->parameters.push_back(initializer.name);
    if (job.forward_microbatches != 0) {
      const Graph evaluation = sure(dag::attach_evaluation_loss(model, {&loss, 1}, {&columns, 1},
                                                                job.microbatch_size, dag::op_table()));
      graphs->programs[ProgramKind::Evaluate] =
          cut(evaluation, ProgramKind::Evaluate,
              plan::follow_stages(evaluation, lowered(evaluation), train, stage_of_op), job.stages);
    }
  }
  for (const auto& [kind, program] : graphs->programs)
    for (const auto& piece : program.pieces)
      compiled()[piece.program.graph.get()] = std::make_shared<const HashProgram>(
          piece.program.graph, piece.program.segment_of_op, piece.program.segment_count);
  return graphs;
}

}  // namespace

std::shared_ptr<const HashProgram> hashes_of(const Graph& graph) { return compiled().at(&graph); }

std::shared_ptr<const ModelGraphs> graphs_of(const JobSpec& job) {
  using Key = std::tuple<uint32_t, int64_t, uint32_t, bool, bool, uint32_t, bool>;
  static std::map<Key, std::shared_ptr<const ModelGraphs>> cache;
  auto& graphs = cache[Key(job.layers, job.width, job.stages, job.wraps, job.predicts, job.microbatch_size,
                           job.forward_microbatches != 0)];
  if (!graphs) graphs = make_graphs(job);
  return graphs;
}

uint64_t train_position(const JobSpec& job, uint64_t step, uint32_t microbatch) {
  return ((step - 1) * job.microbatches + microbatch) * job.microbatch_size;
}
uint64_t forward_position(const JobSpec& job, uint32_t microbatch) {
  return uint64_t{microbatch} * job.microbatch_size;
}

Alone::Alone(const JobSpec& job) : job_(job), graphs_(graphs_of(job)) {
  Step start;
  const auto& whole = *graphs_->programs.begin()->second.whole;
  for (const std::string& name : whole.initializers())
    start.state[name].value = initial_value(job_.seed, name);
  steps_.push_back(std::move(start));
}

void Alone::forward(const HashProgram& program, ProgramKind kind, const State& state, uint64_t position,
                    std::vector<uint64_t>& values) {
  values.assign(program.value_count(), 0);
  for (const ValueId input : program.graph().inputs())
    values[input.index] = data_value(job_.seed, kind, program.graph().value(input).name, position);
  for (size_t i = 0; i < program.initializers().size(); ++i)
    values[program.initializer_value(i)] = state.at(program.initializers()[i]).value;
  program.run(0, values);
}

const Alone::Step& Alone::after(uint64_t step) {
  while (steps_.size() <= step) {
    const uint64_t number = steps_.size();
    steps_.push_back(make_step(steps_.back().state, number, number));
  }
  return steps_[step];
}

Alone::Step Alone::make_step(const State& before, uint64_t samples_of, uint64_t number) {
  const HashProgram& program = *graphs_->programs.begin()->second.whole;
  std::vector<uint64_t> values;
  Step next;
  std::map<std::string, uint64_t> gradients, of_range;
  const uint32_t length = job_.microbatches / job_.ranges;
  double losses = 0;
  for (uint32_t m = 0; m < job_.microbatches; ++m) {
    forward(program, ProgramKind::Train, before, train_position(job_, samples_of, m), values);
    for (const auto& output : program.outputs()) {
      if (output.role == OutputRole::Loss) losses += scalar_of(values[output.value]);
      if (output.role != OutputRole::Gradient) continue;
      uint64_t &sum = gradients[output.name], &range = of_range[output.name];
      range = m % length == 0 ? values[output.value] : mix(range, values[output.value]);
      if (m % length == length - 1) sum = m < length ? range : mix(sum, range);
    }
  }
  next.loss = losses / job_.microbatches;
  double squares = 0;
  for (const std::string& parameter : graphs_->parameters) squares += square_of(gradients.at(parameter));
  next.norm = std::sqrt(squares) / job_.microbatches;
  for (const std::string& parameter : graphs_->parameters)
    next.state[parameter] = updated(before.at(parameter), job_.slots, gradients.at(parameter),
                                    job_.clip_norm > 0 ? next.norm : 0, number);
  return next;
}

std::map<std::string, double> Alone::evaluate(const State& state) {
  const HashProgram& program = *graphs_->programs.at(ProgramKind::Evaluate).whole;
  double loss = 0, correct = 0, counted = 0;
  std::vector<uint64_t> values;
  for (uint32_t m = 0; m < job_.forward_microbatches; ++m) {
    forward(program, ProgramKind::Evaluate, state, forward_position(job_, m), values);
    for (const auto& output : program.outputs()) {
      const double number = scalar_of(values[output.value]);
      if (output.role == OutputRole::Loss) loss += number;
      if (output.role == OutputRole::Correct) correct += number;
      if (output.role == OutputRole::Counted) counted += number;
    }
  }
  return {{"loss", loss / counted}, {"accuracy", correct / counted}};
}

uint64_t Alone::prediction(uint32_t microbatch) {
  const HashProgram& program = *graphs_->programs.at(ProgramKind::Predict).whole;
  std::vector<uint64_t> values;
  forward(program, ProgramKind::Predict, steps_[0].state, forward_position(job_, microbatch), values);
  for (const auto& output : program.outputs())
    if (output.role == OutputRole::Prediction) return values[output.value];
  return 0;
}

}  // namespace weft::sim
