#include "sim/model.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <unordered_map>

#include "base/check.h"
#include "broker/place/pace.h"
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
  const HashProgram& program = *graphs_->programs.begin()->second.whole;
  std::vector<uint64_t> values;
  while (steps_.size() <= step) {
    const uint64_t number = steps_.size();
    Step next;
    std::map<std::string, uint64_t> gradients;
    double losses = 0;
    for (uint32_t m = 0; m < job_.microbatches; ++m) {
      forward(program, ProgramKind::Train, steps_.back().state, train_position(job_, number, m), values);
      for (const auto& output : program.outputs()) {
        if (output.role == OutputRole::Loss) losses += scalar_of(values[output.value]);
        if (output.role != OutputRole::Gradient) continue;
        uint64_t& sum = gradients[output.name];
        sum = m == 0 ? values[output.value] : mix(sum, values[output.value]);
      }
    }
    next.loss = losses / job_.microbatches;
    double squares = 0;
    for (const std::string& parameter : graphs_->parameters) squares += square_of(gradients.at(parameter));
    next.norm = std::sqrt(squares) / job_.microbatches;
    for (const std::string& parameter : graphs_->parameters)
      next.state[parameter] = updated(steps_.back().state.at(parameter), job_.slots, gradients.at(parameter),
                                      job_.clip_norm > 0 ? next.norm : 0, number);
    steps_.push_back(std::move(next));
  }
  return steps_[step];
}

std::map<std::string, double> Alone::evaluation(uint64_t step) {
  const HashProgram& program = *graphs_->programs.at(ProgramKind::Evaluate).whole;
  double loss = 0, correct = 0, counted = 0;
  std::vector<uint64_t> values;
  const State& state = after(step).state;
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

namespace {

proto::Secret secret_of(uint64_t draw) {
  proto::Secret secret;
  for (size_t i = 0; i < secret.size(); ++i) secret[i] = static_cast<uint8_t>(mix(draw, i));
  return secret;
}

broker::DrawSecret secrets(uint64_t seed) {
  return [seed, drawn = uint64_t{0}]() mutable { return secret_of(mix(seed, drawn++)); };
}

dag::OptimizerSpec optimizer_of(const JobSpec& job) {
  dag::OptimizerSpec optimizer;
  optimizer.type = job.slots == 2 ? dag::OptimizerType::AdamW : dag::OptimizerType::Sgd;
  optimizer.learning_rate = 0.125;
  if (job.slots == 1) optimizer.momentum = 0.5;
  return optimizer;
}

broker::JobTerms terms_of(const JobSpec& job, const ModelGraphs& graphs,
                          const broker::JobTerms::Initial& initial) {
  broker::JobTerms terms;
  terms.run.training = {{.seed = job.seed,
                         .batch_size = job.microbatches * job.microbatch_size,
                         .microbatch_size = job.microbatch_size,
                         .optimizer = optimizer_of(job),
                         .schedule = {},
                         .clip_norm = job.clip_norm},
                        job.predicts ? 0 : job.steps};
  terms.run.borders = {job.evaluate_every, {job.checkpoint_every, job.checkpoint_steps}};
  for (const auto& [kind, program] : graphs.programs)
    terms.programs[kind] = {program.graph.get(), uint64_t{job.forward_microbatches} * job.microbatch_size};
  terms.initial = &initial;
  return terms;
}

broker::JobTerms::Initial initial_of(const JobSpec& job, const ModelGraphs& graphs) {
  broker::JobTerms::Initial initial;
  const Graph& graph = *graphs.programs.begin()->second.graph;
  for (const dag::Initializer& initializer : graph.initializers())
    initial[initializer.name] = {weight_key(initializer), graph.spec(initializer.value),
                                 digest_of(initial_value(job.seed, initializer.name))};
  return initial;
}

// Computing one microbatch on a device of the promised speed: matmul flops per second stand for it.
Duration microbatch_time(const JobSpec& job, const ModelGraphs& graphs, uint32_t stage,
                         const broker::Candidate& peer) {
  uint64_t ops = 0;
  for (const broker::StagePiece& piece : graphs.programs.begin()->second.pieces) {
    if (piece.stage != stage) continue;
    const auto hashes = hashes_of(*piece.program.graph);
    for (uint32_t s = 0; s < piece.program.segment_count; ++s) ops += hashes->ops_in(s);
  }
  const double speed = peer.device.rates.matmul_flops_per_second / 1e9;
  return std::chrono::duration_cast<Duration>(
      std::chrono::duration<double>(static_cast<double>(ops) * seconds(job.op) / speed));
}

// On which of the candidates: of one kind, as many as there are.
Result<std::vector<uint32_t>> choose(JobSpec& job, const std::vector<broker::Candidate>& candidates,
                                     uint64_t first) {
  std::map<std::string, std::vector<uint32_t>> kinds;
  std::vector<uint32_t> all;
  for (uint32_t c = 0; c < candidates.size(); ++c) {
    all.push_back(static_cast<uint32_t>((c + first) % candidates.size()));
    kinds[candidates[all.back()].device.fingerprint].push_back(all.back());
  }
  std::vector<uint32_t> chosen;
  for (const auto& [fingerprint, group] : kinds)
    if (group.size() > chosen.size()) chosen = group;
  if (!job.any_stages && chosen.size() < job.stages) chosen = all;
  if (job.any_stages) job.stages = std::max(1u, std::min(job.stages, static_cast<uint32_t>(chosen.size())));
  if (chosen.size() < job.stages) return fail(ErrorCode::Infeasible, "there are fewer peers than stages");
  chosen.resize(job.stages);
  return chosen;
}

Result<std::shared_ptr<const broker::PlannedRun>> assemble(const JobSpec& job,
                                                           const broker::StartPlanning& request,
                                                           const std::vector<uint32_t>& placed,
                                                           Duration predicted_min, uint64_t secret,
                                                           uint64_t copy_rate) {
  const auto graphs = graphs_of(job);
  plan::Plan plan;
  plan.explanation = {"simulated"};
  Duration slowest{};
  for (uint32_t s = 0; s < placed.size(); ++s) {
    plan::StagePlan stage;
    stage.devices = {placed[s]};
    stage.microbatches_in_flight =
        s == 0 && job.wraps ? job.microbatches : std::min(job.microbatches, job.stages - s);
    stage.forward = microbatch_time(job, *graphs, s, request.candidates[placed[s]]);
    slowest = std::max(slowest, stage.forward);
    plan.stages.push_back(std::move(stage));
  }
  plan.predicted_step =
      std::max(predicted_min, std::chrono::milliseconds(1) + slowest * (job.microbatches + job.stages));
  const auto initial = initial_of(job, *graphs);
  const auto terms = terms_of(job, *graphs, initial);
  broker::Assembly assembly(request, terms, plan, copy_rate, secrets(secret));
  for (const auto& [kind, program] : graphs->programs) assembly.add(program.pieces);
  return assembly.finish();
}

}  // namespace

Result<std::shared_ptr<const broker::PlannedRun>> plan_run(const JobSpec& spec,
                                                           const broker::StartPlanning& request,
                                                           uint64_t secret, uint64_t copy_rate,
                                                           uint64_t first) {
  if (request.previous && request.placed.size() == request.previous->stages.size()) {
    JobSpec job = spec;
    job.stages = static_cast<uint32_t>(request.placed.size());
    const auto initial = initial_of(job, *graphs_of(job));
    return broker::place_stages_again(request, &initial, copy_rate, secrets(secret));
  }
  JobSpec job = spec;
  WEFT_TRY(const auto placed, choose(job, request.candidates, first));
  return assemble(job, request, placed, Duration{}, secret, copy_rate);
}

Result<std::shared_ptr<const broker::PlannedRun>> plan_by_pace(const JobSpec& job,
                                                               const broker::StartPlanning& request,
                                                               uint64_t secret, uint64_t copy_rate) {
  auto first = plan_run(job, request, secret, copy_rate);
  if (!first || request.previous) return first;
  const broker::Pace pace(**first, request.candidates, request.cluster);
  std::vector<uint32_t> placed, best;
  Duration least = Duration::max();
  // All ways to place them: there are few peers and stages in a scenario that asks for this.
  const std::function<void()> place_next = [&] {
    if (placed.size() == (*first)->stages.size()) {
      if (const Duration step = pace.predicted_step(placed); step < least) {
        least = step;
        best = placed;
      }
      return;
    }
    for (uint32_t candidate = 0; candidate < request.candidates.size(); ++candidate) {
      if (std::find(placed.begin(), placed.end(), candidate) != placed.end()) continue;
      placed.push_back(candidate);
      place_next();
      placed.pop_back();
    }
  };
  place_next();
  JobSpec placed_job = job;
  placed_job.stages = static_cast<uint32_t>(best.size());
  return assemble(placed_job, request, best, least, secret, copy_rate);
}

}  // namespace weft::sim
