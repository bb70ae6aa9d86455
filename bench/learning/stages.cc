#include "bench/learning/stages.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "base/check.h"
#include "dag/loss.h"
#include "dag/metrics.h"
#include "dag/op_table.h"
#include "dag/optimizer.h"
#include "dag/split.h"
#include "dag/state.h"
#include "peer/service/encoding.h"
#include "plan/follow.h"

namespace weft::learning {

using dag::OutputRole;
using dag::Tensor;
using proto::ProgramKind;

namespace {

uint32_t segment_of(const dag::StageGraph& stage, dag::ValueId value) {
  return stage.segment_of_op[stage.graph.value(value).producer.index];
}

std::map<std::string, Tensor> data_of(const data::Microbatch& microbatch) {
  return {microbatch.tensors.begin(), microbatch.tensors.end()};
}

}  // namespace

Result<std::unique_ptr<Stages>> Stages::create(const JobGraphs& graphs,
                                               const std::vector<uint32_t>& stage_of_op,
                                               std::span<const plan::LinkCodec> codecs,
                                               const dag::Weights& weights, uint64_t seed,
                                               peer::Backend& backend) {
  std::unique_ptr<Stages> made(new Stages(graphs, seed));
  const configs::Job& job = graphs.job;
  const uint32_t count = *std::max_element(stage_of_op.begin(), stage_of_op.end()) + 1;
  std::vector<proto::AssignStage> stages(count);
  WEFT_TRY_STATUS(made->add_program(ProgramKind::Train, graphs.training, *graphs.lowered_training,
                                    stage_of_op, codecs, stages));
  const std::shared_ptr<const dag::Lowered> classes[] = {graphs.lowered_evaluation};
  WEFT_TRY_STATUS(made->add_program(
      ProgramKind::Evaluate, graphs.evaluation, *graphs.lowered_evaluation,
      plan::follow_stages(graphs.evaluation.graph, classes, graphs.training.graph, stage_of_op), codecs,
      stages));
  const std::vector<std::string> parameters = dag::trained_parameters(graphs.training.graph);
  made->parameter_count_ = static_cast<uint32_t>(parameters.size());
  for (uint32_t s = 0; s < count; ++s) {
    proto::AssignStage& stage = stages[s];
    stage.seat = {s};
    stage.stage_count = count;
    stage.training = {{.seed = seed,
                       .batch_size = job.batch_size,
                       .microbatch_size = job.microbatch_size,
                       .optimizer = job.optimizer,
                       .schedule = job.schedule,
                       .clip_norm = job.clip_norm,
                       .gradient_ranges = job.gradient_ranges},
                      graphs.steps};
    std::set<std::string> named;
    std::vector<uint32_t>& own = made->parameters_.emplace_back();
    for (const proto::StageProgram& program : stage.programs) {
      for (const dag::Initializer& initializer : program.graph->initializers())
        if (named.insert(initializer.name).second)
          stage.tensors.push_back({weight_key(initializer), program.graph->spec(initializer.value), {}});
      if (program.kind != ProgramKind::Train) continue;
      for (const std::string& name : dag::trained_parameters(*program.graph))
        own.push_back(static_cast<uint32_t>(std::find(parameters.begin(), parameters.end(), name) -
                                            parameters.begin()));
    }
    WEFT_TRY(auto runner, peer::StageRunner::create(
                              std::make_shared<const proto::AssignStage>(std::move(stage)),
                              [&](const proto::TensorReference& reference) -> Result<Tensor> {
                                const auto at = weights.find(reference.key.name);
                                if (at == weights.end())
                                  return fail(ErrorCode::NotFound,
                                              "no weights for '" + reference.key.name + "'");
                                return at->second;
                              },
                              backend));
    made->runners_.push_back(std::move(runner));
  }
  return made;
}

// As the broker's planner does it: not every stage has a part in every graph.
Status Stages::add_program(ProgramKind kind, const train::Prepared& prepared, const dag::Lowered& lowered,
                           const std::vector<uint32_t>& stage_of_op, std::span<const plan::LinkCodec> codecs,
                           std::vector<proto::AssignStage>& stages) {
  const std::set<uint32_t> used(stage_of_op.begin(), stage_of_op.end());
  const std::vector<uint32_t> stage_of_piece(used.begin(), used.end());
  std::vector<uint32_t> piece_of_op;
  piece_of_op.reserve(stage_of_op.size());
  for (const uint32_t stage : stage_of_op)
    piece_of_op.push_back(static_cast<uint32_t>(
        std::lower_bound(stage_of_piece.begin(), stage_of_piece.end(), stage) - stage_of_piece.begin()));
  const dag::Lowered* const classes[] = {&lowered};
  const std::vector<uint32_t> class_of_piece(stage_of_piece.size(), 0);
  WEFT_TRY(dag::Split split,
           dag::split({&prepared.graph, piece_of_op, classes, class_of_piece}, dag::op_table()));

  Program program;
  program.sends.resize(stages.size());
  program.segments.assign(stages.size(), 0);
  std::vector<proto::StageProgram> of_piece(split.stages.size());
  std::vector<std::set<uint32_t>> received(split.stages.size());
  for (uint32_t e = 0; e < split.cut_edges.size(); ++e) {
    const dag::CutEdge& cut = split.cut_edges[e];
    Edge edge{.from_stage = stage_of_piece[cut.from_stage],
              .to_stage = stage_of_piece[cut.to_stage],
              .from_segment = segment_of(split.stages[cut.from_stage], cut.sent),
              .to_segment = segment_of(split.stages[cut.to_stage], cut.received),
              .receive = static_cast<uint32_t>(of_piece[cut.to_stage].receives.size()),
              .backward = prepared.graph.producer(cut.value).phase == dag::Phase::Backward,
              .codec = {}};
    edge.codec =
        plan::codec_of(codecs, edge.from_stage, edge.to_stage, edge.backward, prepared.graph.spec(cut.value));
    of_piece[cut.to_stage].receives.push_back({e, cut.received, edge.from_stage, edge.codec});
    of_piece[cut.from_stage].sends.push_back({e, cut.sent, edge.to_stage, edge.codec});
    received[cut.to_stage].insert(cut.received.index);
    program.sends[edge.from_stage].push_back(e);
    program.edges.push_back(edge);
  }
  for (uint32_t piece = 0; piece < split.stages.size(); ++piece) {
    proto::StageProgram& stage = of_piece[piece];
    dag::StageGraph& graph = split.stages[piece];
    stage.kind = kind;
    stage.segment_of_op = std::move(graph.segment_of_op);
    stage.segment_count = graph.segment_count;
    for (const dag::ValueId input : graph.graph.inputs())
      if (!received[piece].contains(input.index)) stage.data_inputs.push_back(graph.graph.value(input).name);
    stage.graph = std::make_shared<const dag::Graph>(std::move(graph.graph));
    program.segments[stage_of_piece[piece]] = stage.segment_count;
    stages[stage_of_piece[piece]].programs.push_back(std::move(stage));
  }

  std::vector<uint32_t> next(stages.size(), 0);
  const auto is_ready = [&](uint32_t stage) {
    return std::all_of(program.edges.begin(), program.edges.end(), [&](const Edge& edge) {
      return edge.to_stage != stage || edge.to_segment > next[stage] ||
             next[edge.from_stage] > edge.from_segment;
    });
  };
  for (bool progress = true; progress;) {
    progress = false;
    for (uint32_t s = 0; s < stages.size(); ++s)
      if (next[s] < program.segments[s] && is_ready(s)) {
        program.order.emplace_back(s, next[s]++);
        progress = true;
      }
  }
  WEFT_CHECK_MSG(next == program.segments, "stages wait for each other");
  programs_[kind] = std::move(program);
  return {};
}

Result<Tensor> Stages::carry(const peer::MicrobatchKey& key, uint32_t e, const Tensor& tensor, bool dense) {
  const Edge& edge = programs_.at(key.program).edges[e];
  proto::TensorHeader header{
      .step = key.step,
      .microbatch = key.microbatch,
      .edge = e,
      .program = key.program,
      .direction = edge.backward ? proto::Direction::Backward : proto::Direction::Forward,
      .spec = tensor.spec(),
      .codec = dense ? compress::Codec{} : edge.codec};
  const Tensor payload = peer::encode_tensor(header, tensor, seed_, scratch_);
  if (key.program == ProgramKind::Train) {
    Sent& sent = sent_[{edge.from_stage, edge.to_stage, edge.backward}];
    sent.wire += static_cast<int64_t>(payload.bytes().size());
    sent.dense += static_cast<int64_t>(tensor.bytes().size());
  }
  return peer::decode_tensor(header, payload, seed_);
}

Result<Stages::Numbers> Stages::run(const peer::MicrobatchKey& key, const std::map<std::string, Tensor>& data,
                                    bool dense) {
  const Program& program = programs_.at(key.program);
  std::vector<std::optional<Tensor>> carried(program.edges.size());
  Numbers numbers;
  for (const auto& [stage, segment] : program.order) {
    peer::StageRunner::Inputs inputs;
    inputs.data = data;
    for (uint32_t e = 0; e < program.edges.size(); ++e)
      if (program.edges[e].to_stage == stage && program.edges[e].to_segment == segment)
        inputs.received.emplace_back(program.edges[e].receive, *std::exchange(carried[e], std::nullopt));
    WEFT_TRY(auto output, runners_[stage]->run({.kind = peer::TaskKind::Segment,
                                                .key = key,
                                                .segment = segment,
                                                .first_segment = segment == 0,
                                                .last_segment = segment + 1 == program.segments[stage]},
                                               inputs));
    for (const auto& [send, tensor] : output.sends) {
      const uint32_t e = program.sends[stage][send];
      WEFT_TRY(carried[e], carry(key, e, tensor, dense));
    }
    if (!output.outcome.loss.empty()) numbers.loss = output.outcome.loss;
    if (!output.outcome.counted.empty()) numbers.counted = output.outcome.counted;
    if (!output.outcome.correct.empty()) numbers.correct = output.outcome.correct;
  }
  if (key.program == ProgramKind::Train) ++microbatches_sent_;
  return numbers;
}

Result<double> Stages::step(uint64_t step, data::Loader& loader) {
  double loss = 0;
  for (uint32_t m = 0; m < graphs_.microbatches(); ++m) {
    WEFT_TRY(const auto microbatch, loader.next());
    WEFT_CHECK_MSG(microbatch && microbatch->step == step, "the loader is at another step");
    WEFT_TRY_STATUS(train::check_bounds(graphs_.training.bounds, *microbatch));
    WEFT_TRY(const Numbers numbers, run({ProgramKind::Train, step, m}, data_of(*microbatch), false));
    loss += numbers.loss.at(0);
  }
  WEFT_TRY_STATUS(update(step));
  return loss / graphs_.microbatches();
}

// The norm is added up over parameters in the whole graph's order, whatever stage has them.
Status Stages::update(uint64_t step) {
  peer::Task task{.kind = peer::TaskKind::Update, .key = {.step = step}};
  if (graphs_.job.clip_norm > 0) {
    std::vector<double> squares(parameter_count_, 0);
    for (size_t s = 0; s < runners_.size(); ++s) {
      WEFT_TRY(const auto output,
               runners_[s]->run({.kind = peer::TaskKind::Squares, .key = {.step = step}}, {}));
      for (size_t p = 0; p < parameters_[s].size(); ++p)
        squares[parameters_[s][p]] = output.outcome.squares.at(p);
    }
    double sum = 0;
    for (const double square : squares) sum += square;
    task.norm = std::sqrt(sum) / graphs_.microbatches();
  }
  for (const auto& runner : runners_) {
    WEFT_TRY_STATUS(runner->run(task, {}));
  }
  return {};
}

Result<double> Stages::evaluate(uint64_t step, bool dense) {
  const bool masked = graphs_.evaluation.graph.find_output(OutputRole::Counted) !=
                      nullptr;  // else padding cannot be left out
  dag::EvaluationSums sums(graphs_.evaluation.loss_terms);
  for (uint32_t m = 0; m < graphs_.held_out.size(); ++m) {
    const data::Microbatch& microbatch = graphs_.held_out[m];
    const uint32_t size = graphs_.job.microbatch_size;
    if (!masked && microbatch.valid_count < size) break;
    std::map<std::string, Tensor> data = data_of(microbatch);
    if (masked) {
      Tensor mask({dag::DType::F32, {size}});
      std::fill_n(mask.mutable_as<float>().begin(), microbatch.valid_count, 1.0f);
      data[std::string(dag::kMaskInput)] = std::move(mask);
    }
    WEFT_TRY(Numbers numbers, run({ProgramKind::Evaluate, step, m}, data, dense));
    if (!masked) {
      numbers.loss.at(0) *= microbatch.valid_count;
      numbers.counted = {static_cast<double>(microbatch.valid_count)};
    }
    sums.add(numbers.loss, numbers.counted, numbers.correct.empty() ? 0 : numbers.correct[0]);
  }
  return sums.loss();
}

Result<std::map<dag::StateKey, Tensor>> Stages::state(uint64_t step) {
  std::map<dag::StateKey, Tensor> state;
  for (const auto& runner : runners_) {
    WEFT_TRY(auto output, runner->run({.kind = peer::TaskKind::Snapshot, .key = {.step = step}}, {}));
    for (auto& named : output.snapshot) state[named.key] = std::move(named.tensor);
  }
  return state;
}

}  // namespace weft::learning
