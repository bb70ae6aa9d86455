// A stage for a peer to run: checked as a whole, so that what a peer builds from it indexes nothing that is
// not there.
#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <unordered_map>

#include "dag/slots.h"
#include "proto/agreed_weights.h"
#include "proto/codec/field_counts.h"
#include "proto/codec/wire.h"

namespace weft::proto {

void put(const EdgeEnd& from, wire::EdgeEnd& to) {
  to.set_edge(from.edge);
  to.set_value(from.value.index);
  to.set_stage(from.stage);
  if (from.codec != compress::Codec{}) to.set_codec(compress::name(from.codec));
}
Status get(const wire::EdgeEnd& from, EdgeEnd& to) {
  Reader read("EdgeEnd");
  to.edge = from.edge();
  to.value = {from.value()};
  read.stage(from.stage(), to.stage, "stage");
  read.codec(from.codec(), to.codec, "codec");
  return read.status();
}

// ---- programs

void put(const StageProgram& from, wire::StageProgram& to) {
  to.set_kind(put_enum<wire::ProgramKind>(from.kind));
  if (from.graph) put(*from.graph, *to.mutable_graph());
  put_plain(from.segment_of_op, *to.mutable_segment_of_op());
  to.set_segment_count(from.segment_count);
  put_list(from.receives, *to.mutable_receives());
  put_list(from.sends, *to.mutable_sends());
  put_plain(from.data_inputs, *to.mutable_data_inputs());
}

namespace {

// Segments run one after the other, each of one phase, forward ones first.
Status check_segments(const StageProgram& program) {
  const auto ops = program.graph->ops();
  if (ops.empty() || program.segment_count == 0) return fail(ErrorCode::OutOfRange, "a program without ops");
  if (program.segment_of_op.size() != ops.size())
    return fail(ErrorCode::OutOfRange, "segment_of_op: " + std::to_string(program.segment_of_op.size()) +
                                           " entries for " + std::to_string(ops.size()) + " ops");
  for (size_t i = 0; i < ops.size(); ++i) {
    const uint32_t segment = program.segment_of_op[i];
    if (segment >= program.segment_count || (i > 0 && segment < program.segment_of_op[i - 1]))
      return fail(ErrorCode::OutOfRange, "segment_of_op: op " + std::to_string(i) + " is in segment " +
                                             std::to_string(segment) +
                                             ", which does not ascend or is not there");
    if (i > 0 && (segment == program.segment_of_op[i - 1] ? ops[i].phase != ops[i - 1].phase
                                                          : ops[i].phase < ops[i - 1].phase))
      return fail(ErrorCode::OutOfRange,
                  "segment_of_op: op " + std::to_string(i) + " mixes forward and backward");
  }
  if (program.segment_count > std::max<size_t>(ops.size(), 1))
    return fail(ErrorCode::OutOfRange, "segment_count: more segments than ops");
  return {};
}

bool may_have_codec(const dag::Graph& graph, const EdgeEnd& end) {
  const dag::TensorSpec& spec = graph.spec(end.value);
  return end.codec.kind == compress::Kind::Dense ||
         (spec.dtype == dag::DType::F32 && spec.element_count() <= static_cast<int64_t>(compress::kMaxCount));
}

// Every input that is read comes from one place: an edge, or the data.
Status check_inputs(const StageProgram& program) {
  const dag::Graph& graph = *program.graph;
  const auto refuse = [](const std::string& why) { return fail(ErrorCode::OutOfRange, why); };
  std::set<uint32_t> edges, fed;  // fed: values
  for (const EdgeEnd& end : program.receives) {
    if (end.value.index >= graph.values().size() || graph.producer(end.value).kind != dag::OpKind::Input)
      return refuse("receives: edge " + std::to_string(end.edge) + " ends at no input");
    if (!edges.insert(end.edge).second || !fed.insert(end.value.index).second)
      return refuse("receives: edge " + std::to_string(end.edge) + " or its input is there twice");
    if (!may_have_codec(graph, end))
      return refuse("receives: edge " + std::to_string(end.edge) + " has a codec and no float32");
  }
  for (const EdgeEnd& end : program.sends) {
    if (end.value.index >= graph.values().size())
      return refuse("sends: edge " + std::to_string(end.edge) + " begins at no value");
    if (!may_have_codec(graph, end))
      return refuse("sends: edge " + std::to_string(end.edge) + " has a codec and no float32");
    if (!edges.insert(end.edge).second)
      return refuse("sends: edge " + std::to_string(end.edge) + " is there twice");
  }
  std::unordered_map<std::string_view, uint32_t> inputs;
  for (const dag::ValueId input : graph.inputs())
    inputs.emplace(graph.producer(input).attributes.get_string(dag::Attr::Name), input.index);
  for (const std::string& name : program.data_inputs) {
    const auto at = inputs.find(name);
    if (at == inputs.end()) return refuse("data_inputs: the graph has no input '" + name + "'");
    if (!fed.insert(at->second).second) return refuse("data_inputs: '" + name + "' is fed twice");
  }
  for (const dag::Op& op : graph.ops())
    for (const dag::ValueId operand : op.inputs)
      if (operand.valid() && graph.producer(operand).kind == dag::OpKind::Input &&
          !fed.contains(operand.index))
        return refuse("data_inputs: nothing feeds the input '" + graph.producer(operand).name + "'");
  return {};
}

}  // namespace

Status get(const wire::StageProgram& from, StageProgram& to) {
  Reader read("StageProgram");
  read.enumerator(from.kind(), to.kind, ProgramKind::Predict, "kind");
  dag::Graph graph;
  read.part(from.graph(), graph, "graph");
  read.numbers(from.segment_of_op(), to.segment_of_op, kOpsMax, "segment_of_op");
  to.segment_count = from.segment_count();
  read.list(from.receives(), to.receives, kListMax, "receives");
  read.list(from.sends(), to.sends, kListMax, "sends");
  read.texts(from.data_inputs(), to.data_inputs, kShortListMax, kSymbolMax, "data_inputs");
  WEFT_TRY_STATUS(read.status());
  to.graph = std::make_shared<const dag::Graph>(std::move(graph));
  WEFT_TRY_STATUS(check_segments(to));
  return check_inputs(to);
}

// ---- the stage

void put(const LinkRoute& from, wire::LinkRoute& to) {
  put_seat(from.seat, to);
  to.set_peer(put_bytes(from.peer.digest));
  to.set_dials(from.dials);
  put_plain(from.addresses, *to.mutable_addresses());
  to.set_relay_ticket(put_bytes(from.relay_ticket));
  to.set_region(from.region);
}
Status get(const wire::LinkRoute& from, LinkRoute& to) {
  Reader read("LinkRoute");
  read.seat(from.stage(), from.replica(), to.seat, "stage");
  read.digest(from.peer(), to.peer.digest, "peer");
  to.dials = from.dials();
  read.names(from.addresses(), to.addresses, kAddressesMax, "addresses");
  read.secret(from.relay_ticket(), to.relay_ticket, "relay_ticket");
  read.name(from.region(), to.region, "region");
  return read.status();
}

void put(const BlobSource& from, wire::BlobSource& to) {
  to.set_peer(put_bytes(from.peer.digest));
  put_plain(from.addresses, *to.mutable_addresses());
  to.set_region(from.region);
  put_plain(from.tensors, *to.mutable_tensors());
}
Status get(const wire::BlobSource& from, BlobSource& to) {
  Reader read("BlobSource");
  read.digest(from.peer(), to.peer.digest, "peer");
  read.names(from.addresses(), to.addresses, kAddressesMax, "addresses");
  read.name(from.region(), to.region, "region");
  read.numbers(from.tensors(), to.tensors, kListMax, "tensors");
  return read.status();
}

void put(const MadeTensor& from, wire::MadeTensor& to) {
  to.set_tensor(from.tensor);
  to.set_seed(from.how.seed);
  to.set_bound(from.how.bound);
  to.set_deviation(from.how.deviation);
}
Status get(const wire::MadeTensor& from, MadeTensor& to) {
  Reader read("MadeTensor");
  to.tensor = from.tensor();
  to.how.seed = from.seed();
  read.not_negative(from.bound(), to.how.bound, "bound");
  read.not_negative(from.deviation(), to.how.deviation, "deviation");
  return read.status();
}

Status check_made(const std::vector<MadeTensor>& made, size_t tensors) {
  std::vector<bool> is_made(tensors, false);
  for (const MadeTensor& one : made) {
    if (one.tensor >= tensors || is_made[one.tensor])
      return fail(ErrorCode::OutOfRange, "made: a tensor that is not in the list, or is there twice");
    is_made[one.tensor] = true;
  }
  return {};
}

Status check_sources(const std::vector<BlobSource>& sources, size_t tensors) {
  std::vector<bool> has_one(tensors, false);
  for (const BlobSource& source : sources)
    for (const uint32_t tensor : source.tensors) {
      if (tensor >= tensors || has_one[tensor])
        return fail(ErrorCode::OutOfRange, "sources: a tensor that is not in the list, or has two");
      has_one[tensor] = true;
    }
  return {};
}

namespace {

void put(const dag::ParameterGroup& from, wire::ParameterGroup& to) {
  put_plain(from.parameters, *to.mutable_parameters());
  if (from.weight_decay) to.set_weight_decay(*from.weight_decay);
  to.set_learning_rate_factor(from.learning_rate_factor);
}
void read_group(const wire::ParameterGroup& from, dag::ParameterGroup& to, Reader& read) {
  read.texts(from.parameters(), to.parameters, kShortListMax, kSymbolMax, "optimizer.groups.parameters");
  if (from.has_weight_decay())
    read.finite(from.weight_decay(), to.weight_decay.emplace(), "optimizer.groups.weight_decay");
  read.finite(from.learning_rate_factor(), to.learning_rate_factor, "optimizer.groups.learning_rate_factor");
}

static_assert(has_fields<dag::OptimizerSpec, 11>);
void put_optimizer(const dag::OptimizerSpec& from, wire::Optimizer& to) {
  to.set_type(put_enum<wire::OptimizerType>(from.type));
  to.set_learning_rate(from.learning_rate);
  to.set_weight_decay(from.weight_decay);
  to.set_momentum(from.momentum);
  to.set_dampening(from.dampening);
  to.set_nesterov(from.nesterov);
  to.set_beta1(from.beta1);
  to.set_beta2(from.beta2);
  to.set_epsilon(from.epsilon);
  for (const dag::ParameterGroup& group : from.groups) put(group, *to.add_groups());
  to.set_slots(put_enum<wire::SlotType>(from.slots));
}
void read_optimizer(const wire::Optimizer& from, dag::OptimizerSpec& to, Reader& read) {
  read.enumerator(from.type(), to.type, dag::OptimizerType::AdamW, "optimizer.type");
  read.finite(from.learning_rate(), to.learning_rate, "optimizer.learning_rate");
  read.finite(from.weight_decay(), to.weight_decay, "optimizer.weight_decay");
  read.finite(from.momentum(), to.momentum, "optimizer.momentum");
  read.finite(from.dampening(), to.dampening, "optimizer.dampening");
  to.nesterov = from.nesterov();
  read.finite(from.beta1(), to.beta1, "optimizer.beta1");
  read.finite(from.beta2(), to.beta2, "optimizer.beta2");
  read.finite(from.epsilon(), to.epsilon, "optimizer.epsilon");
  read.require(static_cast<size_t>(from.groups_size()) <= dag::kParameterGroupsMax, "optimizer.groups",
               "too many");
  for (int i = 0; i < from.groups_size() && read.good(); ++i)
    read_group(from.groups(i), to.groups.emplace_back(), read);
  if (from.slots() != wire::SLOT_TYPE_UNSPECIFIED)
    read.enumerator(from.slots(), to.slots, dag::SlotType::Int8, "optimizer.slots");
}

static_assert(has_fields<dag::ScheduleSpec, 3>);
void put_schedule(const dag::ScheduleSpec& from, wire::Schedule& to) {
  to.set_type(put_enum<wire::ScheduleType>(from.type));
  to.set_warmup_steps(from.warmup_steps);
  to.set_final_fraction(from.final_fraction);
}
void read_schedule(const wire::Schedule& from, dag::ScheduleSpec& to, Reader& read) {
  read.enumerator(from.type(), to.type, dag::ScheduleType::Cosine, "schedule.type");
  to.warmup_steps = from.warmup_steps();
  read.finite(from.final_fraction(), to.final_fraction, "schedule.final_fraction");
}

// On the wire its fields are Training's own.
static_assert(has_fields<dag::TrainingTerms, 8>);
void put_terms(const dag::TrainingTerms& from, wire::Training& to) {
  to.set_seed(from.seed);
  to.set_batch_size(from.batch_size);
  to.set_microbatch_size(from.microbatch_size);
  put_optimizer(from.optimizer, *to.mutable_optimizer());
  put_schedule(from.schedule, *to.mutable_schedule());
  to.set_clip_norm(from.clip_norm);
  to.set_gradient_ranges(from.gradient_ranges);
  to.set_on_divergence(put_enum<wire::OnDivergence>(from.on_divergence));
}
void read_terms(const wire::Training& from, dag::TrainingTerms& to, Reader& read) {
  to.seed = from.seed();
  to.batch_size = from.batch_size();
  to.microbatch_size = from.microbatch_size();
  read.require(to.batch_size >= 1 && to.batch_size <= kBatchSizeMax, "batch_size", "not in 1 to 2^30");
  read.require(to.microbatch_size >= 1 && to.batch_size % std::max(to.microbatch_size, 1u) == 0,
               "microbatch_size", "the batch size is no multiple of it");
  read_optimizer(from.optimizer(), to.optimizer, read);
  read_schedule(from.schedule(), to.schedule, read);
  read.finite(from.clip_norm(), to.clip_norm, "clip_norm");
  to.gradient_ranges = std::max(from.gradient_ranges(), 1u);
  read.require(to.batch_size / std::max(to.microbatch_size, 1u) % to.gradient_ranges == 0, "gradient_ranges",
               "the step's microbatches cannot be dealt to as many ranges");
  if (from.on_divergence() != wire::ON_DIVERGENCE_UNSPECIFIED)
    read.enumerator(from.on_divergence(), to.on_divergence, dag::OnDivergence::Skip, "on_divergence");
}

}  // namespace

static_assert(has_fields<dag::TrainingSpec, 3>);
void put(const dag::TrainingSpec& from, wire::Training& to) {
  put_terms(from, to);
  to.set_steps(from.steps);
  put_plain(from.empty_steps, *to.mutable_empty_steps());
}
Status get(const wire::Training& from, dag::TrainingSpec& to) {
  Reader read("Training");
  read_terms(from, to, read);
  to.steps = from.steps();
  read.numbers(from.empty_steps(), to.empty_steps, kEmptyStepsMax, "empty_steps");
  read.require(std::is_sorted(to.empty_steps.begin(), to.empty_steps.end()), "empty_steps", "not ascending");
  return read.status();
}

void put(const AssignStage& from, wire::AssignStage& to) {
  to.set_run(from.run);
  to.set_plan_version(from.plan_version);
  put_seat(from.seat, to);
  to.set_stage_count(from.stage_count);
  put(from.training, *to.mutable_training());
  put_list(from.programs, *to.mutable_programs());
  put_list(from.tensors, *to.mutable_tensors());
  put_list(from.links, *to.mutable_links());
  to.set_microbatches_in_flight(from.microbatches_in_flight);
  to.set_after_step(from.after_step);
  to.set_data_key(put_bytes(from.data_key));
  to.set_copy_rate(from.copy_rate);
  to.set_fuse_elementwise(from.device_class.traits.fuse_elementwise);
  to.set_fuse_products(from.device_class.traits.fuse_products);
  to.set_convolution_layout(put_enum<wire::Layout>(from.device_class.traits.convolution_layout));
  to.set_fingerprint(from.device_class.fingerprint);
  put_list(from.sources, *to.mutable_sources());
  for (const Digest& blob : from.lends) to.add_lends(put_bytes(blob));
  to.set_arithmetic(put_enum<wire::Arithmetic>(from.arithmetic));
  to.set_microbatch_seconds(from.microbatch_seconds);
  to.set_skipped_steps(from.skipped_steps);
  if (from.serve) put(*from.serve, *to.mutable_serve());
  to.set_job_name(put_text(from.job_name, kNameMax));
  to.set_submitter(put_text(from.submitter, kNameMax));
  if (from.local) put(*from.local, *to.mutable_local());
  if (from.exact) put(*from.exact, *to.mutable_exact());
  put_list(from.made, *to.mutable_made());
  if (!from.recipes.empty()) put_recipes(from.recipes, *to.mutable_recipes());
}

namespace {

// A weight may be given in half precision, as a file has it, where the programs hold its float32 master.
bool fits(const TensorReference& tensor, const dag::TensorSpec& spec, dag::SlotType slots) {
  return tensor.spec == spec_of_state(tensor.key.slot, spec, slots) ||
         (is_weight(tensor.key.slot) && is_widened(tensor.spec, spec));
}

// By name and part: how many numbers.
using Parts = std::map<std::pair<std::string_view, uint32_t>, uint64_t>;
Parts agreed_parts(const AssignStage& stage) {
  Parts all;
  if (!stage.local) return all;
  const std::vector<uint32_t> parts = parts_of(stage.local->tensors);
  for (size_t i = 0; i < parts.size(); ++i)
    if (const AgreedTensor& tensor = stage.local->tensors[i]; parts[i] > 0)
      all.emplace(std::pair(std::string_view(tensor.name), parts[i]), tensor.elements);
  return all;
}
// Of what is owed of a part of a tensor; of any other tensor false.
bool is_of_part(const TensorReference& tensor, const Parts& parts) {
  if (tensor.key.slot != dag::StateSlot::ReturnResidue) return false;
  const auto at = parts.find({tensor.key.name, tensor.key.replica});
  return at != parts.end() &&
         tensor.spec == dag::TensorSpec{dag::DType::F32, {static_cast<int64_t>(at->second)}};
}

// Programs share initializers by name, and every tensor is one of theirs.
Status check_tensors(const AssignStage& stage) {
  std::unordered_map<std::string, const dag::TensorSpec*> specs;
  std::vector<const dag::Graph*> graphs;
  graphs.reserve(stage.programs.size());
  for (const StageProgram& program : stage.programs) graphs.push_back(program.graph.get());
  if (stage.serve) graphs.push_back(stage.serve->graph.get());
  for (const dag::Graph* graph : graphs)
    for (const auto& initializer : graph->initializers()) {
      const dag::TensorSpec& spec = graph->spec(initializer.value);
      const auto [at, fresh] = specs.emplace(initializer.name, &spec);
      if (!fresh && *at->second != spec)
        return fail(ErrorCode::OutOfRange, "the programs disagree on initializer '" + initializer.name + "'");
    }
  if (stage.serve && stage.serve->draft && stage.serve->draft->graph)
    for (const auto& initializer : stage.serve->draft->graph->initializers())
      if (!specs.emplace(draft_name(initializer.name), &stage.serve->draft->graph->spec(initializer.value))
               .second)
        return fail(ErrorCode::OutOfRange,
                    "draft: the model has an initializer '" + draft_name(initializer.name) + "', too");
  std::set<dag::StateKey> seen;
  const Parts parts = agreed_parts(stage);
  for (const TensorReference& tensor : stage.tensors) {
    const auto at = specs.find(tensor.key.name);
    const bool is_known = at != specs.end() && (fits(tensor, *at->second, stage.training.optimizer.slots) ||
                                                is_of_part(tensor, parts));
    if (!is_known || tensor.key.slot == dag::StateSlot::None)
      return fail(ErrorCode::OutOfRange, "tensors: '" + to_string(tensor.key) + "' " +
                                             to_string(tensor.spec) + " is no initializer of the programs");
    if (!seen.insert(tensor.key).second)
      return fail(ErrorCode::OutOfRange, "tensors: '" + to_string(tensor.key) + "' is there twice");
  }
  return {};
}

// The seats of other replicas may be of more stages than this one's replica has.
bool is_linked_to(const AssignStage& stage, const plan::Seat& seat) {
  if (seat == stage.seat) return false;
  if (seat.replica == stage.seat.replica) return seat.stage < stage.stage_count;
  const size_t replicas = stage.local   ? stage.local->steps.terms.count
                          : stage.exact ? stage.exact->ranges.size()
                                        : 0;
  return seat.replica < replicas;
}

Status check_stages(const AssignStage& to) {
  const auto is_other = [&](uint32_t stage) { return stage < to.stage_count && stage != to.seat.stage; };
  std::set<plan::Seat> linked;
  for (const LinkRoute& link : to.links)
    if (!is_linked_to(to, link.seat) || !linked.insert(link.seat).second)
      return fail(ErrorCode::OutOfRange, "links: a seat that is there twice, or is no other one of the run");
  if (to.serve && !to.programs.empty()) return fail(ErrorCode::OutOfRange, "serve: beside programs");
  if (to.serve && to.serve->draft && to.seat.stage != 0)
    return fail(ErrorCode::OutOfRange, "serve: a draft of a stage that is not the first");
  std::set<ProgramKind> kinds;
  for (const StageProgram& program : to.programs) {
    if (!kinds.insert(program.kind).second)
      return fail(ErrorCode::OutOfRange, "programs: a kind is there twice");
    for (const auto* ends : {&program.receives, &program.sends})
      for (const EdgeEnd& end : *ends)
        if (!is_other(end.stage))
          return fail(ErrorCode::OutOfRange, "programs: an edge to a stage that is no other one");
  }
  return {};
}

}  // namespace

Status get(const wire::AssignStage& from, AssignStage& to) {
  Reader read("AssignStage");
  to.run = from.run();
  to.plan_version = from.plan_version();
  to.stage_count = from.stage_count();
  read.require(to.stage_count >= 1 && to.stage_count <= kStagesMax, "stage_count", "not in 1 to 1024");
  read.seat(from.stage(), from.replica(), to.seat, "stage");
  read.require(to.seat.stage < to.stage_count, "stage", "not below the count of stages");
  read.part(from.training(), to.training, "training");
  read.list(from.programs(), to.programs, 3, "programs");
  read.list(from.tensors(), to.tensors, kListMax, "tensors");
  read.list(from.links(), to.links, kStagesMax, "links");
  to.microbatches_in_flight = from.microbatches_in_flight();
  read.require(to.microbatches_in_flight >= 1 && to.microbatches_in_flight <= kInFlightMax,
               "microbatches_in_flight", "not in 1 to 65536");
  to.after_step = from.after_step();
  read.secret(from.data_key(), to.data_key, "data_key");
  to.copy_rate = from.copy_rate();
  to.device_class.traits.fuse_elementwise = from.fuse_elementwise();
  to.device_class.traits.fuse_products = from.fuse_products();
  if (from.convolution_layout() != wire::LAYOUT_UNSPECIFIED)
    read.enumerator(from.convolution_layout(), to.device_class.traits.convolution_layout,
                    dag::Layout::Blocked16, "convolution_layout");
  read.text(from.fingerprint(), to.device_class.fingerprint, kSymbolMax, "fingerprint");
  read.list(from.sources(), to.sources, kStagesMax, "sources");
  read.digests(from.lends(), to.lends, kListMax, "lends");
  if (from.arithmetic() != wire::ARITHMETIC_UNSPECIFIED)
    read.enumerator(from.arithmetic(), to.arithmetic, dag::Arithmetic::BF16, "arithmetic");
  read.not_negative(from.microbatch_seconds(), to.microbatch_seconds, "microbatch_seconds");
  to.skipped_steps = from.skipped_steps();
  read.require(to.skipped_steps <= to.after_step, "skipped_steps", "more than there were steps");
  if (from.has_serve()) read.part(from.serve(), to.serve.emplace(), "serve");
  read.name(from.job_name(), to.job_name, "job_name");
  read.name(from.submitter(), to.submitter, "submitter");
  if (from.has_local()) read.part(from.local(), to.local.emplace(), "local");
  if (from.has_exact()) read.part(from.exact(), to.exact.emplace(), "exact");
  read.list(from.made(), to.made, kListMax, "made");
  get_recipes(from.recipes(), to.recipes, read);
  WEFT_TRY_STATUS(read.status());
  for (const Status& checked :
       {check_stages(to), check_tensors(to), check_sources(to.sources, to.tensors.size()),
        check_made(to.made, to.tensors.size()), check_local(to), check_exact(to)})
    if (!checked) return fail(checked.error().within("AssignStage"));
  return {};
}

}  // namespace weft::proto
