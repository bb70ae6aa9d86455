#include "sim/model.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <unordered_map>

#include "base/check.h"
#include "broker/pace.h"
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

ModelGraphs::Program cut(const Graph& graph, ProgramKind kind, const std::vector<uint32_t>& stage_of_op) {
  ModelGraphs::Program program;
  const auto whole = std::make_shared<const Graph>(graph);
  program.whole = std::make_shared<const HashProgram>(whole, std::vector<uint32_t>(graph.ops().size(), 0), 1);
  std::set<uint32_t> used(stage_of_op.begin(), stage_of_op.end());
  const std::vector<uint32_t> stage_of_piece(used.begin(), used.end());
  std::vector<uint32_t> piece_of_op;
  for (const uint32_t stage : stage_of_op)
    piece_of_op.push_back(static_cast<uint32_t>(
        std::lower_bound(stage_of_piece.begin(), stage_of_piece.end(), stage) - stage_of_piece.begin()));
  dag::Split split =
      sure(dag::split(graph, piece_of_op, static_cast<uint32_t>(stage_of_piece.size()), dag::op_table()));
  for (uint32_t p = 0; p < split.stages.size(); ++p) {
    dag::StageGraph& stage = split.stages[p];
    ModelGraphs::Piece piece;
    piece.stage = stage_of_piece[p];
    piece.program.kind = kind;
    piece.program.segment_of_op = std::move(stage.segment_of_op);
    piece.program.segment_count = stage.segment_count;
    std::set<uint32_t> received;
    for (uint32_t e = 0; e < split.cut_edges.size(); ++e) {
      const dag::CutEdge& edge = split.cut_edges[e];
      if (edge.to_stage == p) {
        piece.program.receives.push_back({e, edge.received, stage_of_piece[edge.from_stage]});
        received.insert(edge.received.index);
      }
      if (edge.from_stage == p) piece.program.sends.push_back({e, edge.sent, stage_of_piece[edge.to_stage]});
    }
    for (const ValueId input : stage.graph.inputs())
      if (!received.contains(input.index)) piece.program.data_inputs.push_back(stage.graph.value(input).name);
    piece.program.graph = std::make_shared<const Graph>(std::move(stage.graph));
    piece.hashes = std::make_shared<const HashProgram>(piece.program.graph, piece.program.segment_of_op,
                                                       piece.program.segment_count);
    program.pieces.push_back(std::move(piece));
  }
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
        cut(model, ProgramKind::Predict, stages_of(layers_of(model, job.layers), job));
  } else {
    const dag::LossSpec loss{.type = dag::LossType::CrossEntropy,
                             .prediction = "logits",
                             .target = "y",
                             .axis = {},
                             .ignore_index = {}};
    const dag::TensorSpec target{dag::DType::I64, {job.microbatch_size}};
    const Graph forward = sure(dag::attach_training_loss(model, {&loss, 1}, {&target, 1}, dag::op_table()));
    const Graph train = dag::lower(sure(dag::differentiate(forward, dag::op_table())), dag::op_table(),
                                   {.fuse_elementwise = false});
    const auto stage_of_op = dag::stages_by_origin(train, stages_of(layers_of(train, job.layers), job));
    graphs->programs[ProgramKind::Train] = cut(train, ProgramKind::Train, stage_of_op);
    for (const auto& initializer : train.initializers())
      if (train.find_output(OutputRole::Gradient, initializer.name))
        graphs->parameters.push_back(initializer.name);
    if (job.forward_microbatches != 0) {
      const Graph evaluation =
          dag::lower(sure(dag::attach_evaluation_loss(model, {&loss, 1}, {&target, 1}, job.microbatch_size,
                                                      dag::op_table())),
                     dag::op_table(), {.fuse_elementwise = false});
      graphs->programs[ProgramKind::Evaluate] =
          cut(evaluation, ProgramKind::Evaluate, plan::follow_stages(evaluation, {}, train, stage_of_op));
    }
  }
  for (const auto& [kind, program] : graphs->programs)
    for (const auto& piece : program.pieces) compiled()[piece.program.graph.get()] = piece.hashes;
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

dag::OptimizerSpec optimizer_of(const JobSpec& job) {
  dag::OptimizerSpec optimizer;
  optimizer.type = job.slots == 2 ? dag::OptimizerType::AdamW : dag::OptimizerType::Sgd;
  optimizer.learning_rate = 0.125;
  if (job.slots == 1) optimizer.momentum = 0.5;
  return optimizer;
}

// Values and slots from the checkpoint where it has them; else as submitted, and without slots.
std::vector<proto::TensorReference> tensors_for(
    const JobSpec& job, const proto::AssignStage& stage,
    const std::optional<broker::CheckpointCommitted>& checkpoint) {
  std::map<dag::StateKey, const proto::TensorReference*> saved;
  if (checkpoint)
    for (const auto& tensor : checkpoint->tensors) saved[tensor.key] = &tensor;
  const std::vector<dag::StateSlot> slots = optimizer_slots(optimizer_of(job));
  std::vector<proto::TensorReference> tensors;
  std::set<std::string> named;
  for (const proto::StageProgram& program : stage.programs)
    for (const dag::Initializer& initializer : program.graph->initializers()) {
      if (!named.insert(initializer.name).second) continue;
      const auto value = find_weight(saved, initializer.name);
      tensors.push_back(value != saved.end()
                            ? *value->second
                            : proto::TensorReference{weight_key(initializer),
                                                     program.graph->spec(initializer.value),
                                                     digest_of(initial_value(job.seed, initializer.name))});
      for (const dag::StateSlot slot : slots)
        if (const auto found = saved.find(dag::of_initializer(initializer.name, slot)); found != saved.end())
          tensors.push_back(*found->second);
    }
  return tensors;
}

void set_links(broker::PlannedRun& run, const std::vector<broker::Candidate>& peers,
               std::vector<std::shared_ptr<proto::AssignStage>>& stages, uint64_t secret) {
  std::set<std::pair<uint32_t, uint32_t>> pairs;
  for (uint32_t s = 0; s < stages.size(); ++s) {
    stages[s]->links.clear();
    for (const proto::StageProgram& program : stages[s]->programs) {
      for (const proto::EdgeEnd& end : program.sends) pairs.insert(std::minmax(s, end.stage));
      for (const proto::EdgeEnd& end : program.receives) pairs.insert(std::minmax(s, end.stage));
    }
  }
  run.relay_tickets.clear();
  for (const auto& [low, high] : pairs) {
    const bool high_dials = peers[high].device.addresses.empty() && !peers[low].device.addresses.empty();
    const proto::Secret ticket = secret_of(mix(secret, (uint64_t{low} << 32) | high));
    run.relay_tickets.push_back(ticket);
    const auto route = [&](uint32_t to, bool dials) {
      return proto::LinkRoute{.seat = {to},
                              .peer = peers[to].peer,
                              .dials = dials,
                              .addresses = peers[to].device.addresses,
                              .relay_ticket = ticket,
                              .region = peers[to].device.region};
    };
    stages[low]->links.push_back(route(high, !high_dials));
    stages[high]->links.push_back(route(low, high_dials));
  }
}

// Computing one microbatch on a device of the promised speed: matmul flops per second stand for it.
double microbatch_seconds(const JobSpec& job, const proto::AssignStage& stage,
                          const broker::Candidate& peer) {
  uint64_t ops = 0;
  const auto& program = stage.programs.front();
  const auto hashes = hashes_of(*program.graph);
  for (uint32_t s = 0; s < program.segment_count; ++s) ops += hashes->ops_in(s);
  return static_cast<double>(ops) * seconds(job.op) * 1e9 / peer.device.rates.matmul_flops_per_second;
}

void describe(const JobSpec& job, const ModelGraphs& graphs, broker::PlannedRun& run) {
  run.steps = job.predicts ? 0 : job.steps;
  run.batch_size = job.microbatches * job.microbatch_size;
  run.microbatch_size = job.microbatch_size;
  run.microbatches = job.microbatches;
  run.parameter_count = static_cast<uint32_t>(graphs.parameters.size());
  run.optimizer = optimizer_of(job);
  run.clip_norm = job.clip_norm;
  run.evaluate_every = job.evaluate_every;
  run.checkpoint_every = job.checkpoint_every;
  run.checkpoint_steps = job.checkpoint_steps;
  run.forward_microbatches = job.forward_microbatches;
  run.forward_samples = uint64_t{job.forward_microbatches} * job.microbatch_size;
  run.masked = run.accuracy = !job.predicts && job.forward_microbatches != 0;
  run.prediction_stages = job.predicts ? 1 : 0;
  run.explanation = {"simulated"};
}

}  // namespace

Result<std::shared_ptr<const broker::PlannedRun>> plan_run(const JobSpec& spec,
                                                           const broker::StartPlanning& request,
                                                           uint64_t secret, uint64_t replication_rate) {
  JobSpec job = spec;
  auto run = std::make_shared<broker::PlannedRun>();
  const bool placed = request.previous && request.placed.size() == request.previous->stages.size();
  // Of one kind, as many as there are.
  std::map<std::string, std::vector<const broker::Candidate*>> kinds;
  for (const auto& candidate : request.candidates) kinds[candidate.device.fingerprint].push_back(&candidate);
  std::vector<const broker::Candidate*> chosen;
  for (const auto& [fingerprint, group] : kinds)
    if (group.size() > chosen.size()) chosen = group;
  if (!placed && !job.any_stages && chosen.size() < job.stages) {
    chosen.clear();
    for (const auto& candidate : request.candidates) chosen.push_back(&candidate);
  }
  if (job.any_stages) job.stages = std::max(1u, std::min(job.stages, static_cast<uint32_t>(chosen.size())));
  if (!placed && chosen.size() < job.stages)
    return fail(ErrorCode::Infeasible, "there are fewer peers than stages");
  if (placed) job.stages = static_cast<uint32_t>(request.placed.size());
  const auto graphs = graphs_of(job);
  std::vector<std::shared_ptr<proto::AssignStage>> stages(job.stages);
  std::vector<broker::Candidate> peers(job.stages);
  if (placed) {
    *run = *request.previous;
  } else {
    describe(job, *graphs, *run);
    run->stages.resize(job.stages);
  }
  run->data_key = secret_of(secret);
  for (uint32_t s = 0; s < job.stages; ++s) {
    peers[s] = placed ? request.candidates[request.placed[s]] : *chosen[s];
    stages[s] = placed ? std::make_shared<proto::AssignStage>(*request.previous->stages[s].assignment)
                       : std::make_shared<proto::AssignStage>();
    proto::AssignStage& stage = *stages[s];
    stage.run = request.job;
    stage.plan_version = request.plan_version;
    stage.seat = {s};
    stage.stage_count = job.stages;
    stage.training = {.seed = job.seed,
                      .batch_size = run->batch_size,
                      .microbatch_size = job.microbatch_size,
                      .steps = run->steps,
                      .optimizer = run->optimizer,
                      .schedule = {},
                      .clip_norm = job.clip_norm};
    if (!placed)
      for (const auto& [kind, program] : graphs->programs)
        for (const auto& piece : program.pieces)
          if (piece.stage == s) stage.programs.push_back(piece.program);
    stage.microbatches_in_flight =
        s == 0 && job.wraps ? job.microbatches : std::min(job.microbatches, job.stages - s);
    stage.after_step = request.checkpoint ? request.checkpoint->step : 0;
    stage.data_key = run->data_key;
    stage.replication_rate = replication_rate;
    if (!placed) stage.device_class = peers[s].device.device_class();
    stage.tensors = tensors_for(job, stage, request.checkpoint);
    run->stages[s].peer = peers[s].peer;
    run->stages[s].microbatch_seconds = microbatch_seconds(job, stage, peers[s]);
    run->stages[s].parameters.clear();
    for (const proto::StageProgram& program : stage.programs)
      if (program.kind == ProgramKind::Train)
        for (const auto& initializer : program.graph->initializers())
          if (program.graph->find_output(OutputRole::Gradient, initializer.name))
            run->stages[s].parameters.push_back(static_cast<uint32_t>(
                std::find(graphs->parameters.begin(), graphs->parameters.end(), initializer.name) -
                graphs->parameters.begin()));
  }
  double slowest = 0;
  for (const auto& stage : run->stages) slowest = std::max(slowest, stage.microbatch_seconds);
  run->predicted_step =
      std::chrono::milliseconds(1 + static_cast<int64_t>(1000 * slowest * (job.microbatches + job.stages)));
  run->fingerprint = peers.front().device.fingerprint;
  run->equal_bits = std::all_of(peers.begin(), peers.end(), [&](const auto& peer) {
    return peer.device.fingerprint == run->fingerprint;
  });
  set_links(*run, peers, stages, secret);
  for (uint32_t s = 0; s < job.stages; ++s) run->stages[s].assignment = stages[s];
  return std::shared_ptr<const broker::PlannedRun>(std::move(run));
}

Result<std::shared_ptr<const broker::PlannedRun>> plan_by_pace(const JobSpec& job,
                                                               const broker::StartPlanning& request,
                                                               uint64_t secret, uint64_t replication_rate) {
  auto first = plan_run(job, request, secret, replication_rate);
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
  broker::StartPlanning chosen = request;
  chosen.candidates.clear();
  for (const uint32_t candidate : best) chosen.candidates.push_back(request.candidates[candidate]);
  WEFT_TRY(const auto planned, plan_run(job, chosen, secret, replication_rate));
  const auto foreseen = std::make_shared<broker::PlannedRun>(*planned);
  foreseen->predicted_step = std::max(foreseen->predicted_step, least);
  return std::shared_ptr<const broker::PlannedRun>(foreseen);
}

}  // namespace weft::sim
