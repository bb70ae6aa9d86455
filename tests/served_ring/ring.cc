#include "tests/served_ring/ring.h"

#include <limits>

#include "peer/backend/cpu/cpu_backend.h"
#include "serve/stage.h"
#include "tests/incremental/compare.h"
#include "tests/incremental/forms.h"

namespace weft::served {

using proto::ServeEnd;

namespace {
constexpr int64_t kVocabulary = 29, kWidth = 16;

Result<std::unique_ptr<peer::Backend>> make_backend() {
  return peer::make_cpu_backend({.threads = 1, .pin = false});
}
}  // namespace

// Its row of the table is so large that the sum of two is none.
incremental::testing::Model overflowing(incremental::testing::Model model, int64_t vocabulary,
                                        int64_t token) {
  for (auto& [name, tensor] : model.weights)
    if (tensor.shape() == dag::Shape{vocabulary, kWidth})
      for (int64_t i = 0; i < kWidth; ++i)
        tensor.mutable_as<float>()[static_cast<size_t>(token * kWidth + i)] = 3e38f;
  return model;
}

ServedModel::ServedModel(int64_t layers, int64_t vocabulary, std::optional<int64_t> overflows)
    : model(incremental::testing::make_model(
          {.name = "served", .width = kWidth, .layers = layers, .vocabulary = vocabulary})) {
  if (overflows) model = overflowing(std::move(model), vocabulary, *overflows);
  incremental = *incremental::testing::derive(model);
}

uint32_t ServedModel::first_part(uint32_t seat, uint32_t stages) const {
  const uint32_t parts = serve::part_count(*incremental);
  if (seat == 0) return parts - 1;
  return 1 + (seat - 1) * (parts - 2) / (stages - 1);
}

// As a planner has it: what one sequence guesses may fill the ring.
void add_draft(const ServedModel& served, FakeBroker& broker, proto::AssignStage& assign) {
  proto::ServeProgram& serve = *assign.serve;
  serve.passes_max = 4 * assign.stage_count;
  if (assign.seat.stage != 0) return;
  serve.draft = {.kind = served.draft, .right = 0.5};
  if (served.draft != plan::DraftKind::Decoder) return;
  serve.draft->graph = serve.graph;
  serve.draft->tokens = serve.tokens;
  serve.draft->logits = serve.logits;
  for (const auto& initializer : served.model.graph->initializers())
    if (const auto weight = served.model.weights.find(initializer.name);
        weight != served.model.weights.end()) {
      auto& tensor = assign.tensors.emplace_back(
          proto::TensorReference{weight_key(initializer), weight->second.spec(), broker.put(weight->second)});
      tensor.key.name = proto::draft_name(initializer.name);
    }
}

proto::AssignStage ServedModel::assignment(FakeBroker& broker, uint32_t seat, uint32_t stages) const {
  const uint32_t parts = serve::part_count(*incremental);
  proto::AssignStage assign;
  assign.run = 1;
  assign.seat = {seat};
  assign.stage_count = stages;
  assign.training.batch_size = assign.training.microbatch_size = 1;
  proto::ServeProgram& serve = assign.serve.emplace();
  serve.graph = model.graph;
  serve.tokens = model.tokens;
  for (const dag::GraphOutput& output : model.graph->outputs()) serve.logits = output.name;
  if (stages == 1)
    serve.ranges = {{0, parts}};
  else if (seat == 0)
    serve.ranges = {{0, 1}, {parts - 1, parts}};
  else
    serve.ranges = {
        {first_part(seat, stages), seat + 1 == stages ? parts - 1 : first_part(seat + 1, stages)}};
  serve.rows_max = 16;
  serve.passes_max = stages;
  serve.sequences_max = 4;
  serve.positions_max = serve.kept_positions_max = 4 * 96;
  for (const auto& initializer : model.graph->initializers())
    if (const auto weight = model.weights.find(initializer.name); weight != model.weights.end())
      assign.tensors.push_back({weight_key(initializer), weight->second.spec(), broker.put(weight->second)});
  if (draft != plan::DraftKind::None) add_draft(*this, broker, assign);
  return assign;
}

// Weights that are NaN: whoever has them computes as all do.
void spoil(proto::AssignStage& assign, FakeBroker& broker) {
  for (proto::TensorReference& reference : assign.tensors) {
    if (reference.spec.dtype != dag::DType::F32) continue;
    dag::Tensor tensor(reference.spec);
    for (float& number : tensor.mutable_as<float>()) number = std::numeric_limits<float>::quiet_NaN();
    reference.sha256 = broker.put(tensor);
  }
}

// ---- peers

PeerThread::PeerThread(const FakeBroker& broker) {
  peer::PeerServiceOptions options;
  options.broker = broker.endpoint();
  options.broker_key = broker.key();
  options.identity = identity_.get();
  options.listen = net::Endpoint{"127.0.0.1", 0};
  options.make_backend = make_backend;
  options.log = [this](const std::string& line) {
    if (line.find("stage_taken_over") != std::string::npos) ++taken_over_;
  };
  options.hello.device.emplace();
  thread_ = std::thread([this, options = std::move(options)]() mutable {
    peer::PeerService service(loop_, std::move(options));
    EXPECT_TRUE(service.run());
    EXPECT_TRUE(service.rest(kPatience));
  });
}

PeerThread::~PeerThread() {
  loop_.stop();
  thread_.join();
}

// ---- texts

std::vector<proto::ServeRequest> random_requests(Rng& rng, uint64_t count, uint64_t tokens_max) {
  std::vector<proto::ServeRequest> requests;
  for (uint64_t number = 1; number <= count; ++number) {
    proto::ServeRequest& request = requests.emplace_back();
    request.run = 1;
    request.request = number;
    for (uint64_t left = 1 + rng.below(50); left > 0; --left)
      request.tokens.push_back(static_cast<int64_t>(rng.below(kVocabulary)));
    request.tokens_max = 1 + rng.below(tokens_max);
    request.temperature = rng.below(4) == 0 ? 0 : 0.9;
    request.top_p = rng.below(2) == 0 ? 1 : 0.9;
    request.top_k = rng.below(3) * 7;
    request.seed = rng.next_u64();
    request.alternatives = 0;
    if (rng.below(3) == 0) request.ends = {static_cast<int64_t>(rng.below(kVocabulary))};
  }
  return requests;
}

std::map<uint64_t, Text> texts_of_one_machine(const ServedModel& model,
                                              const std::vector<proto::ServeRequest>& requests) {
  const auto backend = *make_backend();
  const auto decoder = *serve::make_cached_decoder(model.incremental, model.model.weights,
                                                   std::make_shared<peer::State>(*backend));
  std::map<uint64_t, Text> texts;
  for (const proto::ServeRequest& request : requests) {
    serve::Engine engine(*decoder, {});
    Text& text = texts[request.request];
    const auto added = engine.add({.prompt = request.tokens,
                                   .tokens_max = static_cast<int64_t>(request.tokens_max),
                                   .sampling = {request.temperature, request.top_p,
                                                static_cast<int64_t>(request.top_k), request.seed, 0},
                                   .ends = request.ends},
                                  {.on_token =
                                       [&](const serve::Generated& generated) {
                                         text.tokens.push_back(generated.draw.token);
                                         text.log_probabilities.push_back(generated.draw.log_probability);
                                         return true;
                                       },
                                   .on_end =
                                       [&](serve::Finish finish, const Status&) {
                                         text.end = finish == serve::Finish::Stop     ? ServeEnd::Stop
                                                    : finish == serve::Finish::Length ? ServeEnd::Length
                                                                                      : ServeEnd::Failed;
                                       }});
    EXPECT_TRUE(added) << added.error().message;
    while (!text.end) EXPECT_TRUE(engine.tick().status);
  }
  return texts;
}

// ---- the ring

Ring::Ring(const ServedModel& model, uint32_t stages) : model_(model) {
  broker.on_message = [this](const PeerId& from, const proto::Message& message) {
    on_message(from, message);
  };
  for (uint32_t seat = 0; seat < stages; ++seat) peers_.push_back(std::make_unique<PeerThread>(broker));
  for (uint32_t seat = 0; seat < stages; ++seat) await(seat);
}

void Ring::await(uint32_t seat) {
  const PeerId id = peers_[seat]->id();
  EXPECT_TRUE(wait([&] { return broker.is_here(id); }));
  if (seat > 0)
    wires_[seat] = std::make_unique<peer::test::Wire>(*net::parse_endpoint(broker.address_of(id)));
}

void Ring::replace(uint32_t seat) {
  peers_[seat].reset();
  peers_[seat] = std::make_unique<PeerThread>(broker);
  if (broken_ == seat) broken_.reset();
  await(seat);
}

// The lower of two seats dials, over the other one's wire.
void Ring::assign(proto::PlanVersion version) {
  version_ = version;
  ready.clear();
  const auto stages = static_cast<uint32_t>(peers_.size());
  for (uint32_t seat = 0; seat < stages; ++seat) {
    proto::AssignStage assign = model_.assignment(broker, seat, stages);
    assign.plan_version = version;
    if (broken_ == seat) spoil(assign, broker);
    for (uint32_t other = 0; other < stages; ++other)
      if (other != seat && ((seat + 1) % stages == other || (other + 1) % stages == seat))
        assign.links.push_back({.seat = {other},
                                .peer = peers_[other]->id(),
                                .dials = seat < other,
                                .addresses = {other == 0 ? broker.address_of(peers_[0]->id())
                                                         : net::to_string(wires_.at(other)->endpoint())}});
    broker.say(peers_[seat]->id(), assign);
  }
  EXPECT_TRUE(wait([&] { return ready.size() == stages; }));
}

void Ring::ask(const proto::ServeRequest& request) {
  proto::ServeRequest asked = request;
  asked.plan_version = version_;
  asked_[request.request] = asked;
  texts[request.request];
  broker.say(peers_[0]->id(), asked);
}

void Ring::ask_again() {
  for (const auto& [number, text] : texts) {
    if (text.end) continue;
    asked_.at(number).plan_version = version_;
    proto::ServeRequest again = asked_.at(number);
    again.tokens.insert(again.tokens.end(), text.tokens.begin(), text.tokens.end());
    again.tokens_max -= text.tokens.size();
    broker.say(peers_[0]->id(), again);
  }
}

void Ring::cancel(uint64_t request) {
  broker.say(peers_[0]->id(), proto::CancelRequest{1, version_, request});
}

bool Ring::wait(const std::function<bool()>& until) {
  return loop.run_until(kPatience, [&] { return until() || !failures.empty(); }) && until();
}

bool Ring::all_ended() const {
  return std::all_of(texts.begin(), texts.end(),
                     [](const auto& text) { return text.second.end.has_value(); });
}

uint64_t Ring::tokens() const {
  uint64_t count = 0;
  for (const auto& [number, text] : texts) count += text.tokens.size();
  return count;
}

void Ring::on_message(const PeerId& from, const proto::Message& message) {
  if (const auto* failed = std::get_if<proto::StageFailed>(&message)) failures.push_back(*failed);
  if (const auto* is_ready = std::get_if<proto::StageReady>(&message)) ready.push_back(*is_ready);
  if (std::holds_alternative<proto::StageResumed>(message)) ++resumed;
  const auto* progress = std::get_if<proto::ServeProgress>(&message);
  if (progress == nullptr) return;
  if (from == peers_[0]->id() && progress->plan_version == version_) on_progress(*progress);
}

// As a broker takes it: what is known is compared, what is missing is asked for again.
void Ring::on_progress(const proto::ServeProgress& progress) {
  guesses += progress.guesses;
  guesses_right += progress.guesses_right;
  Text& text = texts.at(progress.request);
  proto::ServeRequest again = asked_.at(progress.request);
  const uint64_t prompt = again.tokens.size(), known = prompt + text.tokens.size();
  if (progress.first > known) {
    ++gaps;
    again.tokens.insert(again.tokens.end(), text.tokens.begin(), text.tokens.end());
    return broker.say(peers_[0]->id(), again);
  }
  for (size_t i = 0; i < progress.tokens.size(); ++i) {
    const size_t at = progress.first - prompt + i;
    if (at < text.tokens.size()) {
      EXPECT_EQ(text.tokens[at], progress.tokens[i].token);
      continue;
    }
    text.tokens.push_back(progress.tokens[i].token);
    text.log_probabilities.push_back(progress.tokens[i].log_probability);
  }
  if (progress.end) text.end = progress.end;
  if (progress.error) text.error = progress.error;
}

}  // namespace weft::served
