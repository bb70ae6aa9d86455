// One to three peers against one machine: the same text, whatever happens to links and broker in between.
#include <cmath>

#include "peer/backend/cpu/cpu_backend.h"
#include "peer/service/serve_runner.h"
#include "serve/stage.h"
#include "tests/served_ring/ring.h"

namespace weft::served {
namespace {

using proto::ServeEnd;

void expect_equal(const std::map<uint64_t, Text>& texts, const std::map<uint64_t, Text>& wanted) {
  ASSERT_EQ(texts.size(), wanted.size());
  for (const auto& [number, text] : texts) {
    EXPECT_FALSE(text.error.has_value()) << text.error->message;
    EXPECT_TRUE(text == wanted.at(number)) << "request " << number << ": " << text.tokens.size()
                                           << " tokens, " << wanted.at(number).tokens.size() << " wanted";
  }
}

class RingOf : public ::testing::TestWithParam<uint32_t> {
 protected:
  const uint64_t seed_ = 20261126 + GetParam();
  Rng rng_{seed_, 0};
  ServedModel model_;
};

// More requests than are served at once.
TEST_P(RingOf, DrawsTheTextOfOneMachine) {
  SCOPED_TRACE("seed " + std::to_string(seed_));
  const auto requests = random_requests(rng_, 10);
  const auto wanted = texts_of_one_machine(model_, requests);
  Ring ring(model_, GetParam());
  ring.assign();
  for (const auto& is_ready : ring.ready) EXPECT_GT(is_ready.persistent.value, 0);
  for (const auto& request : requests) ring.ask(request);
  ASSERT_TRUE(ring.wait([&] { return ring.all_ended(); }));
  expect_equal(ring.texts, wanted);
  EXPECT_EQ(ring.gaps, 0u);
}

// A wrong guess costs rows, and no token.
TEST_P(RingOf, DrawsTheSameTextWhoeverGuesses) {
  SCOPED_TRACE("seed " + std::to_string(seed_));
  const auto requests = random_requests(rng_, 6);
  const auto wanted = texts_of_one_machine(model_, requests);
  for (const auto kind : {plan::DraftKind::Ngram, plan::DraftKind::Coin, plan::DraftKind::Decoder}) {
    SCOPED_TRACE(static_cast<int>(kind));
    model_.draft = kind;
    Ring ring(model_, GetParam());
    ring.assign();
    for (const auto& request : requests) ring.ask(request);
    ASSERT_TRUE(ring.wait([&] { return ring.all_ended(); }));
    expect_equal(ring.texts, wanted);
    EXPECT_GT(ring.guesses, 0u);
    EXPECT_LE(ring.guesses_right, ring.guesses);
    if (kind == plan::DraftKind::Decoder) {
      EXPECT_GT(ring.guesses_right, ring.guesses / 2) << "of " << ring.guesses << ": it is the model itself";
    }
  }
}

// The requests that are not cancelled are as if there had been no others.
TEST_P(RingOf, GoesOnBesideWhatIsCancelled) {
  SCOPED_TRACE("seed " + std::to_string(seed_));
  auto requests = random_requests(rng_, 8);
  for (auto& request : requests) request.ends.clear();
  for (auto& request : requests) request.tokens_max = 40;
  auto wanted = texts_of_one_machine(model_, requests);
  Ring ring(model_, GetParam());
  ring.assign();
  for (const auto& request : requests) ring.ask(request);
  ASSERT_TRUE(ring.wait([&] { return !ring.texts.at(1).tokens.empty(); }));
  for (const uint64_t number : {1u, 8u}) ring.cancel(number);
  ASSERT_TRUE(ring.wait([&] { return ring.all_ended(); }));
  for (const uint64_t number : {1u, 8u}) {
    // It may have been at its end when it was cancelled.
    if (ring.texts.at(number).end == ServeEnd::Cancelled) {
      ring.texts.erase(number);
      wanted.erase(number);
    }
  }
  expect_equal(ring.texts, wanted);
}

// While the broker is away passes go round; it then hears what it has missed.
TEST_P(RingOf, GoesOnWhileTheBrokerIsAway) {
  SCOPED_TRACE("seed " + std::to_string(seed_));
  const auto requests = random_requests(rng_, 8);
  const auto wanted = texts_of_one_machine(model_, requests);
  Ring ring(model_, GetParam());
  ring.assign();
  for (const auto& request : requests) ring.ask(request);
  for (uint64_t times = 1; times <= 3; ++times) {
    const uint64_t before = ring.tokens();
    ASSERT_TRUE(ring.wait([&] { return ring.tokens() > before || ring.all_ended(); }));
    EXPECT_TRUE(times > 1 || !ring.all_ended());
    ring.broker.hang_up();
    ASSERT_TRUE(ring.wait([&] { return ring.resumed == times * GetParam(); }));
    // What was said to nobody is said again.
    for (const auto& request : requests)
      if (!ring.texts.at(request.request).end) ring.ask(request);
  }
  ASSERT_TRUE(ring.wait([&] { return ring.all_ended(); }));
  expect_equal(ring.texts, wanted);
}

// A plan that follows another one, on the same peers.
TEST_P(RingOf, BeginsAnewWithAnotherPlan) {
  SCOPED_TRACE("seed " + std::to_string(seed_));
  const auto requests = random_requests(rng_, 6);
  const auto wanted = texts_of_one_machine(model_, requests);
  Ring ring(model_, GetParam());
  ring.assign();
  for (const auto& request : requests) ring.ask(request);
  ASSERT_TRUE(ring.wait([&] { return ring.tokens() > 3; }));
  EXPECT_FALSE(ring.all_ended());
  ring.assign(2);
  for (const auto& request : requests) {
    Text& text = ring.texts.at(request.request);
    if (!text.end) text = {};
    if (!text.end) ring.ask(request);
  }
  ASSERT_TRUE(ring.wait([&] { return ring.all_ended(); }));
  expect_equal(ring.texts, wanted);
}

INSTANTIATE_TEST_SUITE_P(Peers, RingOf, ::testing::Values(1, 2, 3));

// Were a pass lost, the ring would stand still; had one come twice, texts would differ or a stage refuse it.
TEST(ServedRing, AStageCountsTheRowsThatItKeeps) {
  const ServedModel model;
  net::Loop loop;
  FakeBroker broker(loop);
  const auto backend = *peer::make_cpu_backend({.threads = 1, .pin = false});
  const auto kept_by = [&](uint32_t seat, uint32_t stages, uint64_t kept_positions_max) {
    proto::AssignStage assign = model.assignment(broker, seat, stages);
    assign.serve->kept_positions_max = kept_positions_max;
    const auto runner = peer::ServeRunner::create(
        std::make_shared<const proto::AssignStage>(assign),
        [&](const proto::TensorReference& reference) -> Result<dag::Tensor> {
          return model.model.weights.at(reference.key.name);
        },
        *backend);
    EXPECT_TRUE(runner) << runner.error().message;
    return (*runner)->kept_bytes().value;
  };
  for (uint32_t seat = 0; seat < 3; ++seat) {
    int64_t row = 0;
    for (const dag::RowSpec& edge :
         serve::rows_before(*model.incremental, model.first_part((seat + 1) % 3, 3)))
      row += dag::TensorSpec{edge.dtype, {edge.width}}.bytes().value;
    EXPECT_GT(row, 0);
    EXPECT_EQ(kept_by(seat, 3, 100), 100 * row) << seat;
    EXPECT_EQ(kept_by(seat, 3, 0), 0);
  }
  EXPECT_EQ(kept_by(0, 1, 100), 0) << "it sends nothing";
}

TEST(RingOfThree, HealsCutLinksAndEachPassComesOnce) {
  const uint64_t seed = 7;
  SCOPED_TRACE("seed " + std::to_string(seed));
  Rng rng(seed, 0);
  const ServedModel model;
  const auto requests = random_requests(rng, 10);
  const auto wanted = texts_of_one_machine(model, requests);
  Ring ring(model, 3);
  ring.assign();
  for (const auto& request : requests) ring.ask(request);
  for (uint32_t times = 0; times < 6; ++times) {
    const uint64_t before = ring.tokens();
    ASSERT_TRUE(ring.wait([&] { return ring.tokens() > before + 5 || ring.all_ended(); }));
    ring.cut(1 + times % 2);
    EXPECT_TRUE(times > 0 || !ring.all_ended());
  }
  ASSERT_TRUE(ring.wait([&] { return ring.all_ended(); }));
  EXPECT_GT(ring.dialled(1) + ring.dialled(2), 3) << "a link for each pair, and those after the cuts";
  expect_equal(ring.texts, wanted);
}

TEST(RingOfOne, RefusesADraftOfOtherTokens) {
  ServedModel model;
  model.draft = plan::DraftKind::Decoder;
  Ring ring(model, 1);
  proto::AssignStage assign = model.assignment(ring.broker, 0, 1);
  const ServedModel other(1, 31);
  assign.serve->draft->graph = other.model.graph;
  std::erase_if(assign.tensors, [](const auto& tensor) { return tensor.key.name.starts_with("draft/"); });
  for (const auto& initializer : other.model.graph->initializers())
    if (const auto weight = other.model.weights.find(initializer.name); weight != other.model.weights.end()) {
      auto reference = proto::TensorReference{weight_key(initializer), weight->second.spec(),
                                              ring.broker.put(weight->second)};
      reference.key.name = proto::draft_name(initializer.name);
      assign.tensors.push_back(std::move(reference));
    }
  ring.broker.say(ring.peer(0).id(), assign);
  EXPECT_FALSE(ring.wait([&] { return !ring.ready.empty(); }));
  ASSERT_EQ(ring.failures.size(), 1u);
  EXPECT_EQ(ring.failures[0].error.code, ErrorCode::InvalidArgument);
  EXPECT_NE(ring.failures[0].error.message.find("it has 31 tokens"), std::string::npos)
      << ring.failures[0].error.message;
}

TEST(RingOfTwo, TellsOfARequestThatItCannotServe) {
  const ServedModel model;
  Ring ring(model, 2);
  ring.assign();
  ring.ask({.run = 1, .request = 1, .tokens = {5}, .tokens_max = 96});    // beyond the context
  ring.ask({.run = 1, .request = 2, .tokens = {1000}, .tokens_max = 1});  // no token of the model
  ring.ask({.run = 1, .request = 3, .tokens = {5}, .tokens_max = 3, .temperature = 0});
  ASSERT_TRUE(ring.wait([&] { return ring.all_ended(); }));
  EXPECT_EQ(ring.texts.at(1).end, ServeEnd::Failed);
  EXPECT_EQ(ring.texts.at(1).error.value().code, ErrorCode::OutOfRange);
  EXPECT_EQ(ring.texts.at(2).error.value().code, ErrorCode::InvalidArgument);
  EXPECT_EQ(ring.texts.at(3).end, ServeEnd::Length);
  EXPECT_EQ(ring.texts.at(3).tokens.size(), 3u);
}

}  // namespace
}  // namespace weft::served
