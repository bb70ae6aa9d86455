// How a job trains: optimizer and schedule.
#include "configs/job_sections.h"
#include "dag/state.h"

namespace weft::configs {
namespace {

void read_betas(MapReader& reader, dag::OptimizerSpec& spec) {
  const Node* node = reader.take("betas");
  if (!node) return;
  if (node->kind != Node::Kind::Sequence || node->items.size() != 2) {
    reader.problem(node->where, "`optimizer.betas` must be a list of two numbers, as [0.9, 0.999]");
    return;
  }
  const Range range{0, 1, false, /*below_max=*/true};
  spec.beta1 = reader.parse_number(node->items[0], "betas", range).value_or(spec.beta1);
  spec.beta2 = reader.parse_number(node->items[1], "betas", range).value_or(spec.beta2);
}

void read_sgd(MapReader& reader, dag::OptimizerSpec& spec) {
  if (!reader.take("learning_rate"))
    reader.require("learning_rate", "sgd has no default; 0.1 is a common start");
  spec.momentum = reader.number("momentum", 0, {0, kInfinity});
  spec.dampening = reader.number("dampening", 0, {0, kInfinity});
  spec.nesterov = reader.flag("nesterov", false);
  if (spec.nesterov && (spec.momentum <= 0 || spec.dampening != 0))
    reader.problem(reader.where(), "`optimizer.nesterov` needs a momentum above 0 and no dampening");
}

void read_group(const Node& node, const std::string& path, Problems& problems, dag::OptimizerSpec& spec) {
  MapReader reader(node, path, problems);
  dag::ParameterGroup& group = spec.groups.emplace_back();
  if (const Node* parameters = reader.require("parameters", "name them, as [\"*.bias\", \"*norm*\"]"))
    group.parameters = reader.parse_patterns(*parameters, "parameters", /*least=*/1, "[\"*.bias\"]");
  if (const Node* decay = reader.take("weight_decay"))
    group.weight_decay = reader.parse_number(*decay, "weight_decay", {0, kInfinity});
  group.learning_rate_factor = reader.number("learning_rate_factor", 1, {0, kInfinity});
  reader.finish();
}

void read_slots(MapReader& reader, dag::OptimizerSpec& spec) {
  static constexpr Choice<dag::SlotType> kSlots[] = {{"float32", dag::SlotType::Float32},
                                                     {"int8", dag::SlotType::Int8}};
  const Node* node = reader.take("slots");
  if (!node) return;
  spec.slots = reader.choice(node, "slots", kSlots).value_or(spec.slots);
  if (spec.slots == dag::SlotType::Int8 && optimizer_slots(spec).empty())
    reader.problem(node->where, "`optimizer.slots: int8` needs slots, and sgd without a momentum has none");
}

void read_groups(MapReader& reader, Problems& problems, dag::OptimizerSpec& spec) {
  const Node* node = reader.take("groups");
  if (!node) return;
  if (node->kind != Node::Kind::Sequence || node->items.size() > dag::kParameterGroupsMax)
    return reader.problem(node->where, "`optimizer.groups` must be a list of at most " +
                                           std::to_string(dag::kParameterGroupsMax) +
                                           " groups, as [{parameters: [\"*.bias\"], weight_decay: 0}]");
  for (size_t i = 0; i < node->items.size(); ++i)
    read_group(node->items[i], "optimizer.groups[" + std::to_string(i) + "]", problems, spec);
}

}  // namespace

void read_optimizer(MapReader& root, Problems& problems, Job& job) {
  using dag::OptimizerType;
  static constexpr Choice<dag::OptimizerType> kOptimizers[] = {{"sgd", dag::OptimizerType::Sgd},
                                                               {"adam", dag::OptimizerType::Adam},
                                                               {"adamw", dag::OptimizerType::AdamW}};
  const Node* node = root.require("optimizer", "as {type: adamw, learning_rate: 1e-3}");
  if (!node) return;
  MapReader reader(*node, "optimizer", problems);
  const auto type = reader.choice(reader.require("type", "say sgd, adam or adamw"), "type", kOptimizers);
  if (!type) return;
  auto& spec = job.optimizer;
  spec.type = *type;
  spec.learning_rate =
      reader.number("learning_rate", *type == dag::OptimizerType::Sgd ? 0 : 1e-3, {0, kInfinity});
  spec.weight_decay =
      reader.number("weight_decay", *type == dag::OptimizerType::AdamW ? 0.01 : 0, {0, kInfinity});
  if (*type == dag::OptimizerType::Sgd) {
    read_sgd(reader, spec);
  } else {
    read_betas(reader, spec);
    spec.epsilon = reader.number("epsilon", 1e-8, {0, kInfinity});
  }
  read_slots(reader, spec);
  read_groups(reader, problems, spec);
  reader.finish();
}

void read_schedule(MapReader& root, Problems& problems, Job& job) {
  using dag::ScheduleType;
  static constexpr Choice<dag::ScheduleType> kSchedules[] = {{"constant", dag::ScheduleType::Constant},
                                                             {"linear", dag::ScheduleType::Linear},
                                                             {"cosine", dag::ScheduleType::Cosine}};
  const Node* node = root.take("schedule");
  if (!node) return;
  MapReader reader(*node, "schedule", problems);
  const auto type =
      reader.choice(reader.require("type", "say constant, linear or cosine"), "type", kSchedules);
  if (!type) return;
  job.schedule.type = *type;
  job.schedule.warmup_steps = reader.count("warmup_steps", 0, 0, kStepsMax);
  if (*type != dag::ScheduleType::Constant) job.schedule.final_fraction = reader.number("final", 0, {0, 1});
  reader.finish();
}

}  // namespace weft::configs
