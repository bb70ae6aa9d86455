#include "tests/proto/samples.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/printable.h"
#include "dag/slots.h"

namespace weft::test {
namespace {

using namespace proto;

class Maker {
 public:
  explicit Maker(Rng& rng) : rng_(rng) {}

  Message message(size_t kind) {
    static const auto kMakers = make_table(std::make_index_sequence<std::variant_size_v<AnyMessage>>{});
    return kMakers[kind](*this);
  }

 private:
  using Make = Message (*)(Maker&);
  template <size_t I>
  static Message make_alternative(Maker& maker) {
    std::variant_alternative_t<I, AnyMessage> message;
    maker.fill(message);
    return message;
  }
  template <size_t... I>
  static std::array<Make, sizeof...(I)> make_table(std::index_sequence<I...>) {
    return {&make_alternative<I>...};
  }

  bool chance() { return rng_.below(2) == 0; }
  uint32_t small() { return static_cast<uint32_t>(rng_.below(5)); }
  void fill(bool& to) { to = chance(); }
  void fill(uint64_t& to) { to = chance() ? rng_.next_u64() : rng_.below(100); }
  void fill(uint32_t& to) { to = chance() ? rng_.next_u32() : static_cast<uint32_t>(rng_.below(100)); }
  void fill(int64_t& to) { to = static_cast<int64_t>(rng_.next_u64()); }
  void fill(double& to) {  // any number
    constexpr double kOdd[] = {0.0, -0.0, std::numeric_limits<double>::infinity(), 5e-324};
    to = rng_.below(4) == 0 ? kOdd[rng_.below(4)] : rng_.normal() * std::exp(rng_.normal() * 20);
  }
  void fill(std::string& to) {  // any bytes, but for what reading replaces in texts for people
    to.clear();
    for (uint64_t i = rng_.below(20); i > 0; --i) to += static_cast<char>(rng_.below(chance() ? 256 : 128));
    to = printable(to);
  }
  void fill(Digest& to) {
    for (uint8_t& byte : to.bytes) byte = static_cast<uint8_t>(rng_.below(256));
  }
  void fill(PeerId& to) { fill(to.digest); }
  void fill(Secret& to) {
    for (uint8_t& byte : to) byte = static_cast<uint8_t>(rng_.below(256));
  }
  void fill(Bytes& to) { to.value = static_cast<int64_t>(rng_.below(uint64_t{1} << 60)); }
  void fill(Duration& to) { to = Duration(static_cast<int64_t>(rng_.below(uint64_t{1} << 60))); }
  template <typename T>
  void fill(std::optional<T>& to) {
    if (chance()) fill(to.emplace());
  }
  template <typename T>
  void fill(std::vector<T>& to) {
    to.resize(rng_.below(5));
    for (T& entry : to) fill(entry);
  }
  template <typename Enum>
  void pick(Enum& to, Enum last, int first = 0) {
    to = static_cast<Enum>(
        first + static_cast<int>(rng_.below(static_cast<uint64_t>(last) - static_cast<uint64_t>(first) + 1)));
  }
  double positive() { return std::exp(rng_.normal() * 5); }
  template <typename... T>
  void fill_all(T&... to) {
    (fill(to), ...);
  }

  void fill(dag::TensorSpec& to) {
    pick(to.dtype, dag::DType::Bool);
    to.shape.resize(rng_.below(5));
    for (int64_t& dim : to.shape) dim = static_cast<int64_t>(rng_.below(9));
  }
  void fill(TensorReference& to) {
    fill_all(to.key.name, to.spec, to.sha256);
    pick(to.key.slot, dag::StateSlot::Value);
    to.key.replica = small();
  }
  void fill(BlobRecipe& to) {
    dag::Recipe& recipe = to.recipe;
    fill_all(to.sha256, recipe.source);
    recipe.source_size = 4096;
    if (chance())
      recipe.cut = {.first = 64 * small(), .size = 128, .stride = 128 + 64 * small(), .count = 1 + small()};
    if (recipe.cut && chance()) return;
    dag::Rounding& how = recipe.rounding.emplace();
    pick(how.part, dag::Rounding::Part::Halves);
    if (how.part == dag::Rounding::Part::Halves) return;
    how.bits = chance() ? 4 : 8;
    how.block = chance() ? 16 : 32;
    how.scale = chance() ? dag::DType::F32 : chance() ? dag::DType::F16 : dag::DType::BF16;
  }
  void fill(replicas::LocalSteps& to) {
    to.terms.count = 1 + small();
    to.terms.every = 1 + small();
    for (uint32_t replica = 0; chance() && replica < to.terms.count; ++replica)
      to.terms.shares.push_back(to.terms.every - rng_.below(to.terms.every / 2 + 1));
    if (to.terms.shares.size() != to.terms.count)
      to.terms.shares.clear();
    else
      to.terms.shares.front() = to.terms.every;
    if (chance()) to.terms.codec = *compress::parse("topk:0.02:int4");
    if (chance()) to.terms.settle_every = 1 + small();
    if (to.terms.overlap() && chance()) to.terms.fragments = 1 + small();
    if (to.terms.count > 2 && chance()) to.terms.followers = {0, to.terms.count - 1};
    pick(to.terms.outer.type, replicas::OuterType::Nesterov);
    to.terms.outer.learning_rate = rng_.normal();
    to.terms.outer.momentum = rng_.normal();
    to.begun_after = small();
    if (to.begun_after > 0 && chance()) to.given_again = {{to.begun_after, 1}};
    to.steps = to.begun_after + 1 + small() + count_of(to.given_again);
  }
  void fill(plan::Rates& to) {
    to = {positive(), positive(), positive(), positive()};
    if (rng_.below(2) == 0) return;
    for (plan::UnitRates& unit : to.units)
      unit = {1 + positive(), 1 + positive(), 1 + positive(), 1 + positive()};
  }
  void fill(plan::Seat& to) { to = {small(), small()}; }
  void fill(LinkUse& to) {
    to = {{small(), small()}, rng_.next_u64(), positive(),      rng_.next_u64(), positive(),     positive(),
          rng_.next_u64(),    rng_.next_u64(), rng_.next_u32(), positive(),      LinkWay::Unsaid};
    to.way = static_cast<LinkWay>(rng_.below(3));
  }
  void fill(TokenProof& to) { fill_all(to.id, to.secret); }
  void fill(DeviceReport& to) {
    to.threads = small();
    to.op_set = 1 + small();
    fill_all(to.device, to.rates, to.memory, to.host_memory, to.fingerprint, to.traits.fuse_elementwise,
             to.traits.fuse_products, to.region, to.owner, to.addresses);
    pick(to.traits.convolution_layout, dag::Layout::Blocked16);
    if (chance()) to.arithmetic.push_back(dag::Arithmetic::TF32);
    if (chance()) to.arithmetic.push_back(dag::Arithmetic::BF16);
  }

  void fill(StageHeld& to) { fill_all(to.run, to.plan_version, to.seat); }
  void fill(Hello& to) {
    fill_all(to.minor, to.software, to.token, to.name, to.device, to.instance, to.holding);
    pick(to.role, Role::Admin, 1);
  }
  void fill(HelloAck& to) {
    fill_all(to.minor, to.software, to.name, to.heartbeat_interval, to.lease, to.unix_ms, to.address);
  }
  void fill(Refusal& to) {
    pick(to.code, kErrorCodeLast);
    fill_all(to.message, to.retry);
  }
  void fill(dag::TrainingSpec& to) {
    fill_all(to.seed, to.steps, to.optimizer.nesterov, to.schedule.warmup_steps);
    to.microbatch_size = 1 + small();
    to.batch_size = to.microbatch_size * (1 + small());
    pick(to.optimizer.type, dag::OptimizerType::AdamW);
    pick(to.optimizer.slots, dag::SlotType::Int8);
    pick(to.schedule.type, dag::ScheduleType::Cosine);
    pick(to.on_divergence, dag::OnDivergence::Skip);
    for (double* number : {&to.optimizer.learning_rate, &to.optimizer.weight_decay, &to.optimizer.momentum,
                           &to.optimizer.dampening, &to.optimizer.beta1, &to.optimizer.beta2,
                           &to.optimizer.epsilon, &to.schedule.final_fraction, &to.clip_norm})
      *number = rng_.normal();
  }
  void fill(LinkRoute& to) { fill_all(to.peer, to.dials, to.addresses, to.relay_ticket, to.region); }
  std::vector<BlobSource> sources_of(size_t tensors) {
    std::vector<BlobSource> sources(small() % 3);
    for (BlobSource& source : sources) fill_all(source.peer, source.addresses, source.region);
    for (uint32_t tensor = 0; tensor < tensors; ++tensor)
      if (const size_t at = rng_.below(sources.size() + 1); at < sources.size())
        sources[at].tensors.push_back(tensor);
    return sources;
  }
  void fill(AssignStage& to) {
    fill_all(to.run, to.plan_version, to.training, to.after_step, to.data_key, to.copy_rate,
             to.device_class.traits.fuse_elementwise, to.device_class.traits.fuse_products,
             to.device_class.fingerprint, to.job_name, to.submitter);
    pick(to.device_class.traits.convolution_layout, dag::Layout::Blocked16);
    to.microbatches_in_flight = 1 + small();
    pick(to.arithmetic, dag::Arithmetic::BF16);
    to.microbatch_seconds = positive();
    to.skipped_steps = to.after_step / 2;
    const dag::BackendTraits traits{.fuse_elementwise = true, .convolution_layout = dag::Layout::Blocked8};
    const CutModel cut = cut_model(chance() ? residual_net(1, {.blocks = 1}) : transformer(1, {.layers = 1}),
                                   traits, 1 + small(), rng_);
    to.stage_count = static_cast<uint32_t>(cut.split.stages.size());
    to.seat = {static_cast<uint32_t>(rng_.below(to.stage_count)), small()};
    to.programs.push_back(stage_program(cut.split, to.seat.stage));
    const dag::Graph& graph = *to.programs[0].graph;
    for (const auto& initializer : graph.initializers())
      for (const auto slot : {dag::StateSlot::M, dag::StateSlot::Momentum, dag::StateSlot::RunningStatistic,
                              dag::StateSlot::V, dag::StateSlot::Value}) {
        if (chance()) continue;
        to.tensors.push_back({dag::of_initializer(initializer.name, slot),
                              spec_of_state(slot, graph.spec(initializer.value), to.training.optimizer.slots),
                              {}});
        fill(to.tensors.back().sha256);
      }
    to.sources = sources_of(to.tensors.size());
    for (uint32_t tensor = 0; tensor < to.tensors.size(); ++tensor)
      if (chance()) to.made.push_back({tensor, {rng_.next_u64(), positive(), positive()}});
    fill_all(to.lends, to.recipes);
    for (uint32_t stage = 0; stage < to.stage_count; ++stage) {
      if (stage == to.seat.stage) continue;
      fill(to.links.emplace_back());
      to.links.back().seat = {stage, to.seat.replica};
    }
    if (chance()) agree_with_others(to);
    if (!to.local) add_gradients_to_others(to);
    if (rng_.below(4) == 0) serve_instead(to);
  }
  void agree_with_others(AssignStage& to) {
    LocalTerms& local = to.local.emplace();
    fill(local.steps);
    if (chance()) local.norm_bound = 10;
    const uint32_t replicas = local.steps.terms.count;
    to.seat.replica %= replicas;
    for (LinkRoute& link : to.links) link.seat.replica = to.seat.replica;
    if (replicas > 1) {
      fill(to.links.emplace_back());
      to.links.back().seat = {small(), (to.seat.replica + 1) % replicas};
    }
    to.training.steps = to.after_step = last_inner_step(local.steps);
    to.skipped_steps = to.after_step / 2;
    for (const auto& initializer : to.programs[0].graph->initializers()) {
      const auto number = static_cast<uint32_t>(2 * local.tensors.size() + rng_.below(2));
      AgreedTensor tensor{.number = number, .name = initializer.name, .owner = small() % replicas};
      tensor.fragment = static_cast<uint32_t>(rng_.below(local.steps.terms.fragments));
      while (local.steps.terms.follows(tensor.owner)) tensor.owner = small() % replicas;
      for (uint32_t replica = 0; replica < replicas; ++replica) tensor.stages.push_back(small());
      tensor.stages[to.seat.replica] = to.seat.stage;
      local.tensors.push_back(std::move(tensor));
    }
  }
  void add_gradients_to_others(AssignStage& to) {
    std::vector<std::string> trained;
    for (const dag::GraphOutput& output : to.programs[0].graph->outputs()) {
      if (output.role == dag::OutputRole::StateUpdate) return;
      if (output.role == dag::OutputRole::Gradient) trained.push_back(output.name);
    }
    ExactTerms& exact = to.exact.emplace();
    exact.ranges = {1 + small(), 1 + small(), 1};
    const char* const codecs[] = {"dense", "int8", "int4", "int6z"};
    exact.codec = compress::parse(codecs[rng_.below(4)]).value();
    to.training.gradient_ranges = exact.ranges[0] + exact.ranges[1] + 1;
    to.training.batch_size = to.training.microbatch_size * to.training.gradient_ranges;
    to.seat.replica %= 3;
    for (LinkRoute& link : to.links) link.seat.replica = to.seat.replica;
    for (const std::string& name : trained) {
      exact.tensors.push_back({.number = static_cast<uint32_t>(exact.tensors.size()),
                               .name = name,
                               .owner = small() % 3,
                               .stages = {small(), small(), small()}});
      exact.tensors.back().stages[to.seat.replica] = to.seat.stage;
    }
    exact.shared_slots = chance();
    for (AgreedTensor& tensor : exact.tensors)  // whose slots it is given
      for (const TensorReference& reference : to.tensors)
        if (exact.shared_slots && !is_weight(reference.key.slot) && reference.key.name == tensor.name)
          tensor.owner = to.seat.replica;
  }
  void serve_instead(AssignStage& to) {
    to.local.reset();
    to.exact.reset();
    std::erase_if(to.links, [&](const LinkRoute& link) { return link.seat.replica != to.seat.replica; });
    ServeProgram& serve = to.serve.emplace();
    serve.graph = to.programs[0].graph;
    to.programs.clear();
    fill_all(serve.tokens, serve.logits);
    serve.ranges.push_back({small(), 10 + small()});
    if (chance()) serve.ranges.push_back({20 + small(), 30 + small()});
    serve.rows_max = 1 + small();
    serve.passes_max = 1 + small();
    serve.sequences_max = 1 + small();
    serve.positions_max = 1 + small();
    serve.kept_positions_max = rng_.below(serve.positions_max + 1);
    if (to.seat.stage == 0 && chance()) draft_beside(to);
  }
  void draft_beside(AssignStage& to) {
    ServeDraft& draft = to.serve->draft.emplace();
    pick(draft.kind, plan::DraftKind::Decoder, 1);
    draft.right = rng_.uniform();
    fill_all(draft.tokens, draft.logits);
    draft.passes_shared = small();
    if (draft.kind != plan::DraftKind::Decoder) return;
    draft.graph = to.serve->graph;
    const auto tensors = to.tensors;
    for (TensorReference tensor : tensors) {
      tensor.key.name = draft_name(tensor.key.name);
      to.tensors.push_back(std::move(tensor));
    }
  }
  void fill(Command& to) {
    fill_all(to.run, to.plan_version, to.step, to.microbatches, to.first_microbatch, to.sequence,
             to.committed, to.settled, to.keep_from, to.direct, to.stays, to.with_followers);
    pick(to.kind, CommandKind::CheckMean);
    if (to.kind == CommandKind::LeaveOut) to.left_out = {.replicas = {1, 3}, .owner = 2};
    if (to.kind == CommandKind::CheckMean) to.check = {to.step, small(), small()};
  }
  void fill(GradientNorm& to) { fill_all(to.run, to.plan_version, to.step, to.norm, to.skip); }
  void fill(ReleaseStage& to) { fill_all(to.run, to.plan_version, to.reason); }
  void fill(RelayInvitation& to) { fill_all(to.run, to.plan_version, to.ticket); }
  void fill(HeartbeatAck& to) { fill(to.sequence); }
  void fill(ResumeStage& to) { fill_all(to.run, to.plan_version); }
  void fill(StandBy& to) {
    fill_all(to.run, to.step, to.tensors, to.rate, to.list);
    to.sources = sources_of(to.tensors.size());
  }
  void fill(StageWork& to) {
    fill_all(to.run, to.plan_version, to.segments_done);
    to.seconds_busy = positive();
  }
  void fill(StageSaving& to) { fill_all(to.run, to.plan_version, to.step, to.saved); }
  void fill(Heartbeat& to) { fill_all(to.sequence, to.memory_free, to.work, to.saving); }
  void fill(StageResumed& to) {
    fill_all(to.run, to.plan_version, to.last_sequence, to.persistent, to.microbatch);
  }
  void fill(StandingBy& to) {
    fill_all(to.run, to.step, to.list);
    if (chance()) return;
    fill(to.failure.emplace().message);
    pick(to.failure->code, kErrorCodeLast);
    if (chance()) fill(to.damaged.emplace());
  }
  void fill(Drain& to) { fill_all(to.reason, to.returns); }
  void fill(StageReady& to) { fill_all(to.run, to.plan_version, to.persistent, to.microbatch, to.follows); }
  void fill(StageFailed& to) {
    fill_all(to.run, to.plan_version, to.error.message, to.permanent, to.diverged, to.step);
    pick(to.error.code, kErrorCodeLast);
    if (chance()) to.unreachable = plan::Seat{small(), small()};
    if (chance()) fill(to.damaged.emplace());
  }
  void fill(StepReport& to) {
    fill_all(to.run, to.plan_version, to.step, to.losses, to.squares, to.updated, to.links,
             to.sample_positions, to.statistics_diverged);
    to.seconds_busy = positive();
    to.seconds = positive();
    if (chance()) fill(to.owed.emplace_back());
  }
  void fill(CheckpointReport& to) {
    fill_all(to.run, to.plan_version, to.step, to.tensors);
    to.skipped_steps = to.step / 2;
    if (chance()) to.local = LocalPoint{.steps = 3 * to.step, .skipped_steps = {to.step / 2, 0, to.step}};
    if (to.local && chance())
      to.local->inherited = {.sets = {0, 0}, .debtless = {1}, .returns_are_lost = chance(), .left_out = {1}};
    if (to.local && chance()) to.local->given_again = {{3, 2}, {9, 1}};
    if (chance()) return;
    fill(to.failure.emplace().message);
    pick(to.failure->code, kErrorCodeLast);
  }
  void fill(EvaluationReport& to) {
    fill_all(to.run, to.plan_version, to.step, to.first_microbatch, to.loss, to.correct, to.counted);
  }
  void fill(ComparisonReport& to) {
    fill_all(to.run, to.plan_version, to.step);
    for (std::vector<double>* numbers : {&to.losses, &to.squares})
      for (uint64_t i = rng_.below(kComparisonPasses + 1); i > 0; --i) numbers->push_back(positive());
  }
  void fill(ServeRequest& to) {
    fill_all(to.run, to.plan_version, to.request, to.top_k, to.seed);
    to.tokens = tokens(1 + small());
    to.ends = tokens(small());
    to.tokens_max = small();
    to.temperature = positive();
    to.top_p = 1 - 0.9 * rng_.uniform();
    if (chance()) to.alternatives = static_cast<uint32_t>(rng_.below(65));
    to.top_k %= uint64_t{1} << 32;
  }
  void fill(CancelRequest& to) { fill_all(to.run, to.plan_version, to.request); }
  void fill(ServedToken& to) {
    to.token = static_cast<int64_t>(rng_.below(50257));
    to.log_probability = -positive();
    for (const int64_t token : tokens(rng_.below(4))) to.alternatives.emplace_back(token, -positive());
  }
  void fill(ServeProgress& to) {
    fill_all(to.run, to.plan_version, to.request, to.tokens);
    to.first = rng_.below(uint64_t{1} << 40);
    to.guesses = small();
    to.guesses_right = to.guesses / 2;
    if (chance()) pick(to.end.emplace(), ServeEnd::Failed);
    if (chance()) to.load = {small(), static_cast<uint32_t>(rng_.below(1025)), small(), small()};
    if (!to.end || *to.end != ServeEnd::Failed) return;
    fill(to.error.emplace().message);
    pick(to.error->code, kErrorCodeLast);
  }
  void fill(ServedModel& to) {
    fill_all(to.name, to.tokenizer, to.chat_template, to.fingerprint);
    to.name += "m";
    to.context = small();
    to.vocabulary = small();
    to.positions_max = small();
    to.sequences_max = small();
  }
  std::vector<int64_t> tokens(uint64_t count) {
    std::vector<int64_t> made(count);
    for (int64_t& token : made) token = static_cast<int64_t>(rng_.below(50257));
    return made;
  }
  void fill(PredictionReport& to) { fill_all(to.run, to.plan_version, to.microbatch, to.outputs); }
  void fill(PeerLog& to) { fill(to.text); }

  void fill(GetBlob& to) { fill_all(to.request, to.sha256, to.rate, to.base); }
  void fill(PutBlob& to) {
    fill_all(to.request, to.sha256, to.durable, to.packed, to.base);
    to.size = rng_.below(uint64_t{1} << 43);
  }
  void fill(BlobAnswer& to) {
    fill_all(to.request, to.message);
    pick(to.code, kErrorCodeLast);
    to.size = rng_.below(uint64_t{1} << 43);
    to.packed = chance();
    to.has_base = to.packed && chance();
  }
  void fill(HaveBlobs& to) { fill_all(to.request, to.blobs, to.durable, to.recipes); }
  void fill(MissingBlobs& to) { fill_all(to.request, to.blobs); }
  void fill(GetMicrobatch& to) {
    fill_all(to.request, to.run, to.data_key, to.step, to.microbatch, to.inputs, to.narrows);
    pick(to.program, ProgramKind::Predict);
  }
  void fill(MicrobatchAnswer& to) {
    fill_all(to.request, to.message, to.sample_position, to.valid_count);
    pick(to.code, kErrorCodeLast);
  }

  void fill(FilePiece& to) {
    if (chance()) {
      fill(to.sha256.emplace());
      to.size = rng_.below(1000);
    } else {
      fill(to.bytes);
      to.size = to.bytes.size();
    }
  }
  void fill(PackedFile& to) {
    to.path = "data/" + std::to_string(rng_.next_u64());
    fill(to.pieces);
  }
  void fill(ModelTensor& to) {
    to.name = "tensor" + std::to_string(rng_.next_u64());
    pick(to.role, dag::TensorRole::Statistic);
    pick(to.reason, dag::RoleReason::Repeat);
    to.axis = static_cast<int32_t>(rng_.below(17)) - 1;
    fill(to.frozen);
  }
  void fill(SubmitJob& to) {
    fill_all(to.name, to.job, to.files, to.excluded, to.compresses, to.skips_steps, to.tensors, to.serves,
             to.submitter, to.recipes);
    if (small() % 2 == 0) {
      Beginning& beginning = to.beginning.emplace();
      fill_all(beginning.step, beginning.skipped_steps, beginning.tensors);
      beginning.step = std::max({beginning.step, beginning.skipped_steps, uint64_t{1}});
      if (chance()) beginning.replica_skipped_steps = {0, beginning.step, beginning.step / 2};
    }
    to.stages = small();
    pick(to.arithmetic, dag::Arithmetic::BF16);
  }
  void fill(JobAccepted& to) { fill(to.job); }
  void fill(StageStatus& to) {
    fill_all(to.peer, to.peer_name, to.region, to.busy, to.links, to.step, to.seat);
  }
  void fill(JobStatus& to) {
    fill_all(to.job, to.name, to.reason, to.plan_version, to.step, to.steps, to.loss, to.samples_per_second,
             to.seconds_left, to.checkpoint_step, to.recovery_step, to.recoveries, to.equal_bits, to.plan,
             to.stages, to.comparison.step, to.comparison.loss_dense, to.comparison.loss,
             to.comparison.gradient_error, to.comparison.gradient_cosine, to.submitter, to.evaluated_step,
             to.saving.step, to.saving.bytes, to.replicas.agreed_step, to.replicas.seconds_since_agreement);
    to.replicas.steps.assign(small(), to.replicas.agreed_step);
    to.saving.saved = {to.saving.bytes.value / 2};
    to.submitted_unix_ms = small();
    to.ended_unix_ms = small();
    for (uint32_t i = small(); i > 0; --i) fill(to.metrics["metric " + std::to_string(i)]);
    pick(to.state, JobState::Failed);
  }
  void fill(PeerStatus& to) {
    fill_all(to.peer, to.name, to.region, to.device, to.software, to.state, to.rates, to.memory, to.reachable,
             to.seconds_since_heard, to.owner, to.reason);
    pick(to.reach, Reach::Closed);
    for (uint32_t i = small() % 4; i > 0; --i) fill(to.jobs.emplace_back());
  }
  void fill(JobEvent& to) {
    fill_all(to.job, to.sequence, to.unix_ms, to.step, to.loss, to.learning_rate, to.seconds,
             to.samples_per_second, to.gradient_norm, to.samples, to.text, to.diverged, to.skipped);
    pick(to.kind, JobEventKind::Result);
    pick(to.state, JobState::Failed);
    for (uint32_t i = small(); i > 0; --i) fill(to.metrics["metric " + std::to_string(i)]);
    fill_all(to.peers);
    if (chance()) to.seats.resize(to.peers.size());
    for (plan::Seat& seat : to.seats) fill(seat);
    if (chance()) fill(to.local_steps.emplace());
    if (chance()) to.inherited = {.sets = {1, 1, 2}, .debtless = {0, 1}, .returns_are_lost = chance()};
  }
  void fill(ListJobs& to) { fill_all(to.before, to.count); }
  void fill(JobList& to) { fill_all(to.jobs, to.more); }
  void fill(GetJob& to) { fill(to.job); }
  void fill(GetEvents& to) { fill_all(to.job, to.from_sequence, to.follow); }
  void fill(EventsEnd& to) { fill(to.job); }
  void fill(StopJob& to) { fill(to.job); }
  void fill(RemoveJob& to) { fill(to.job); }
  void fill(DifferenceRefused& to) {
    fill_all(to.run, to.plan_version, to.step);
    to.replica = small();
    to.ratio = 20 * rng_.uniform();
  }
  void fill(MeanPiece& to) {
    fill_all(to.run, to.plan_version, to.step, to.sequence, to.shown.mean, to.shown.owed_before,
             to.shown.owed_after, to.shown.heard);
    for (std::vector<float>* numbers : {&to.shown.difference, &to.shown.owed, &to.shown.read})
      for (uint32_t i = small(); i > 0; --i) numbers->push_back(static_cast<float>(rng_.uniform()));
  }
  void fill(ReplicasLeftOut& to) { fill_all(to.run, to.plan_version, to.step, to.sequence, to.too_late); }
  void fill(ResumeJob& to) { fill(to.job); }
  void fill(BanPeer& to) { fill_all(to.peer, to.lift); }
  void fill(Done&) {}
  void fill(ListPeers&) {}
  void fill(PeerList& to) { fill_all(to.peers, to.blob_bytes, to.disk_free, to.disk_size); }
  void fill(GetResult& to) { fill(to.job); }
  void fill(JobResult& to) {
    fill_all(to.job, to.step, to.tensors, to.model, to.predictions, to.sample_count);
  }
  void fill(LinkHello& to) {
    fill_all(to.run, to.plan_version, to.received, to.seat, to.streams, to.stream, to.session);
  }
  void fill(LinkReady& to) { fill_all(to.received, to.streams, to.session); }
  void fill(LinkAck& to) { fill(to.received); }
  void fill(ProbeLink& to) {
    fill_all(to.round, to.peer, to.dials, to.addresses, to.relay_ticket, to.region, to.time_max, to.deadline);
    to.bytes_max = rng_.below(uint64_t{1} << 30);
  }
  void fill(ProbeReport& to) {
    fill_all(to.round, to.peer, to.round_trip, to.relayed);
    to.bytes_per_second = positive();
    if (chance()) return;
    fill(to.failure.emplace().message);
    pick(to.failure->code, kErrorCodeLast);
  }
  void fill(ProbeHello& to) { fill(to.round); }
  void fill(ProbeSay& to) {
    pick(to.word, ProbeWord::Turn);
    fill(to.number);
  }
  void fill(ListLinks&) {}
  void fill(LinkEnd& to) {
    fill_all(to.peer, to.name, to.region);
    to.site = small();
    to.uplink = positive();
    to.downlink = positive();
  }
  void fill(LinkFigure& to) {
    fill_all(to.latency, to.assumed, to.relayed, to.in_use);
    to.bytes_per_second = positive();
    to.seconds_since = positive();
  }
  void fill(LinkList& to) {
    fill(to.ends);
    if (to.ends.empty()) return;
    fill_all(to.between, to.links);
    for (LinkFigure& link : to.links) {
      link.from = static_cast<uint32_t>(rng_.below(to.ends.size()));
      link.to = static_cast<uint32_t>(rng_.below(to.ends.size()));
    }
  }
  void fill(RunStage& to) {
    fill_all(to.peer, to.parameters, to.pinned, to.owner);
    to.microbatch_seconds = positive();
  }
  void fill(RunPlan& to) { fill_all(to.stages, to.after_step, to.terms, to.diverged_at); }
  void fill(RunTerms& to) {
    fill_all(to.training.steps, to.training.batch_size, to.training.microbatch_size,
             to.borders.evaluate_every, to.borders.checkpoint.every, to.borders.checkpoint.steps,
             to.microbatches, to.parameter_count, to.forward_microbatches, to.forward_samples, to.masked,
             to.accuracy, to.prediction_stages, to.equal_bits, to.equal_bits_required, to.fingerprint,
             to.explanation, to.relay_tickets, to.data_key, to.predicted_step, to.op_set);
    if (chance()) fill(to.served);
    if (chance()) fill(to.local_steps.emplace());
    if (chance()) fill_all(to.exact_ranges);
    to.replicas_max = static_cast<uint32_t>(rng_.below(replicas::kReplicasMax + 1));
    if (chance()) to.gentler = static_cast<uint32_t>(rng_.below(kGentlerMax + 1));
    to.loss_terms.weights.assign(1 + rng_.below(4), 0.0);
    for (double& weight : to.loss_terms.weights) weight = 2 * rng_.uniform() - 1;
    to.loss_terms.accuracy_term = static_cast<uint32_t>(rng_.below(to.loss_terms.count()));
  }

  Rng& rng_;
};

}  // namespace

Message random_message(size_t kind, Rng& rng) { return Maker(rng).message(kind); }

}  // namespace weft::test
