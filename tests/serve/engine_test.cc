#include "serve/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/rng.h"

namespace weft::serve {
namespace {

constexpr int64_t kContext = 64, kVocabulary = 50, kRowsMax = 8;

class FakeSequence final : public Sequence {
 public:
  std::vector<int64_t> tokens;
  void set_length() { length_ = static_cast<int64_t>(tokens.size()); }
};

// Its logits are a hash of all tokens so far: whoever mixes up sequences or positions draws something else.
class FakeDecoder final : public Decoder {
 public:
  int64_t context() const override { return kContext; }
  int64_t vocabulary() const override { return kVocabulary; }
  int64_t rows_max() const override { return kRowsMax; }
  Bytes bytes_of(int64_t positions) const override { return {positions * 100}; }
  std::unique_ptr<Sequence> begin() override {
    ++sequences;
    return std::make_unique<FakeSequence>();
  }
  void cut(Sequence&, int64_t) override {}

  Result<dag::Tensor> pass(std::span<const Piece> pieces) override {
    if (fails) return fail(ErrorCode::DeviceLost, "the device fell off the bus");
    std::vector<float> logits;
    int64_t rows = 0;
    std::set<Sequence*> seen;
    for (const Piece& piece : pieces) {
      EXPECT_TRUE(seen.insert(piece.sequence).second);
      auto& sequence = static_cast<FakeSequence&>(*piece.sequence);
      sequence.tokens.insert(sequence.tokens.end(), piece.tokens.begin(), piece.tokens.end());
      sequence.set_length();
      rows += static_cast<int64_t>(piece.tokens.size());
      if (piece.logits > 0) append(sequence.tokens, logits);
    }
    EXPECT_LE(rows, kRowsMax);
    passes.push_back(rows);
    return dag::make_tensor({static_cast<int64_t>(logits.size()) / kVocabulary, kVocabulary}, logits);
  }
  static void append(const std::vector<int64_t>& tokens, std::vector<float>& logits) {
    uint64_t hash = 1;
    for (const int64_t token : tokens) hash = hash * 6364136223846793005u + static_cast<uint64_t>(token) + 7;
    Rng rng(hash, 0);
    for (int64_t i = 0; i < kVocabulary; ++i) logits.push_back(static_cast<float>(rng.normal()));
  }

  std::vector<int64_t> passes;
  int sequences = 0;
  bool fails = false;
};

struct Heard {
  std::vector<int64_t> tokens;
  std::vector<Finish> ends;
  Status status;
};
Listener to(Heard& heard, size_t enough = 1000) {
  return {.on_token =
              [&heard, enough](const Generated& generated) {
                heard.tokens.push_back(generated.draw.token);
                return heard.tokens.size() < enough;
              },
          .on_end =
              [&heard](Finish finish, const Status& status) {
                heard.ends.push_back(finish);
                heard.status = status;
              }};
}

// The text of a request alone, drawn without any engine.
std::vector<int64_t> alone(const Request& request) {
  std::vector<int64_t> tokens = request.prompt;
  while (static_cast<int64_t>(tokens.size() - request.prompt.size()) < request.tokens_max) {
    std::vector<float> logits;
    FakeDecoder::append(tokens, logits);
    tokens.push_back(draw_token(logits, request.sampling, static_cast<int64_t>(tokens.size()))->token);
  }
  return {tokens.begin() + static_cast<std::ptrdiff_t>(request.prompt.size()), tokens.end()};
}

void run(Engine& engine) {
  while (!engine.tick().idle) {
  }
}

TEST(Engine, TextsDoNotDependOnCompany) {
  const uint64_t seed = 20261125;
  SCOPED_TRACE("seed " + std::to_string(seed));
  Rng rng(seed, 0);
  for (int round = 0; round < 40; ++round) {
    FakeDecoder decoder;
    Engine engine(decoder, {.cache_bytes = {20000}, .sequences_max = 5, .prompt_rows = 3});
    std::vector<Request> requests;
    std::vector<Heard> heard(12);
    for (size_t i = 0; i < heard.size(); ++i) {
      Request request;
      for (uint64_t k = 0; k <= rng.below(20); ++k)
        request.prompt.push_back(static_cast<int64_t>(rng.below(kVocabulary)));
      request.tokens_max = 1 + static_cast<int64_t>(rng.below(20));
      request.sampling = {.temperature = 0.8, .seed = rng.next_u64()};
      requests.push_back(request);
      ASSERT_TRUE(engine.add(request, to(heard[i])));
      for (uint64_t k = rng.below(4); k > 0; --k) engine.tick();
    }
    run(engine);
    for (size_t i = 0; i < heard.size(); ++i) {
      EXPECT_EQ(heard[i].tokens, alone(requests[i])) << "request " << i << " of round " << round;
      EXPECT_EQ(heard[i].ends, std::vector{Finish::Length});
    }
    EXPECT_EQ(engine.granted(), Bytes{0});
  }
}

TEST(Engine, WhoeverGeneratesGetsARowOfEachPass) {
  FakeDecoder decoder;
  Engine engine(decoder, {.prompt_rows = 2});
  Heard first, second;
  ASSERT_TRUE(engine.add({.prompt = {1, 2}, .tokens_max = 30}, to(first)));
  engine.tick();
  ASSERT_TRUE(engine.add({.prompt = std::vector<int64_t>(10, 3), .tokens_max = 1}, to(second)));
  for (int i = 0; i < 5; ++i) engine.tick();
  EXPECT_EQ(first.tokens.size(), 6u);
  EXPECT_EQ(second.tokens.size(), 1u);
  EXPECT_EQ(decoder.passes, (std::vector<int64_t>{2, 3, 3, 3, 3, 3}));
}

TEST(Engine, EndsAsAsked) {
  FakeDecoder decoder;
  Engine engine(decoder, {});
  Request request{.prompt = {4}, .tokens_max = 12, .sampling = {.temperature = 0}};
  const std::vector<int64_t> text = alone(request);
  Heard stopped, enough, cancelled, to_the_end;
  Request with_end = request;
  with_end.ends = {text[3]};
  ASSERT_TRUE(engine.add(with_end, to(stopped)));
  ASSERT_TRUE(engine.add(request, to(enough, 2)));
  const auto id = engine.add(request, to(cancelled));
  Request unbounded = request;
  unbounded.tokens_max = -1;
  ASSERT_TRUE(engine.add(unbounded, to(to_the_end)));
  engine.tick();
  engine.cancel(*id);
  engine.cancel(999);
  run(engine);
  const auto until = std::find(text.begin(), text.end(), text[3]);
  EXPECT_EQ(stopped.tokens, std::vector<int64_t>(text.begin(), until));
  EXPECT_EQ(stopped.ends, std::vector{Finish::Stop});
  EXPECT_EQ(enough.tokens.size(), 2u);
  EXPECT_EQ(enough.ends, std::vector{Finish::Stop});
  EXPECT_EQ(cancelled.tokens.size(), 1u);
  EXPECT_EQ(cancelled.ends, std::vector{Finish::Cancelled});
  EXPECT_EQ(to_the_end.tokens.size(), static_cast<size_t>(kContext - 1));
  EXPECT_EQ(to_the_end.ends, std::vector{Finish::Length});
}

TEST(Engine, WaitsForMemoryAndThenSaysNo) {
  FakeDecoder decoder;
  Engine engine(decoder, {.cache_bytes = {4000}, .waiting_max = 2});
  Heard heard[4];
  const Request request{.prompt = {1}, .tokens_max = 24};  // 25 positions: 2,500 bytes
  for (size_t i = 0; i < 3; ++i) ASSERT_TRUE(engine.add(request, to(heard[i])));
  EXPECT_EQ(engine.serving(), 1u);
  EXPECT_EQ(engine.waiting(), 2u);
  const auto refused = engine.add(request, to(heard[3]));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::ResourceExhausted);
  run(engine);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(heard[i].tokens.size(), 24u);
  EXPECT_EQ(decoder.sequences, 3);
}

TEST(Engine, RefusesWhatDoesNotFitWithTheNumbers) {
  FakeDecoder decoder;
  Engine engine(decoder, {.cache_bytes = {3000}});
  Heard heard;
  const auto refusal = [&](const Request& request) {
    const auto added = engine.add(request, to(heard));
    EXPECT_FALSE(added);
    return added ? Error{} : added.error();
  };
  EXPECT_EQ(refusal({}).code, ErrorCode::InvalidArgument);
  EXPECT_EQ(refusal({.prompt = {50}}).code, ErrorCode::InvalidArgument);
  EXPECT_NE(
      refusal({.prompt = std::vector<int64_t>(65, 1)}).message.find("65 tokens, the model's context is 64"),
      std::string::npos);
  EXPECT_NE(refusal({.prompt = {1, 2, 3, 4}, .tokens_max = 61})
                .message.find("4 tokens and max_tokens of 61 go beyond the model's context of 64"),
            std::string::npos);
  EXPECT_NE(refusal({.prompt = {1}, .tokens_max = 40}).message.find("the largest that fits has 30"),
            std::string::npos);
  EXPECT_TRUE(heard.ends.empty());
}

TEST(Engine, AFailedPassEndsThoseThatWereInIt) {
  FakeDecoder decoder;
  Engine engine(decoder, {.sequences_max = 1});
  Heard first, second;
  ASSERT_TRUE(engine.add({.prompt = {1}, .tokens_max = 3}, to(first)));
  ASSERT_TRUE(engine.add({.prompt = {1}, .tokens_max = 3}, to(second)));
  decoder.fails = true;
  engine.tick();
  decoder.fails = false;
  run(engine);
  EXPECT_EQ(first.ends, std::vector{Finish::Failed});
  EXPECT_EQ(first.status.error().code, ErrorCode::DeviceLost);
  EXPECT_EQ(second.ends, std::vector{Finish::Length});
}

}  // namespace
}  // namespace weft::serve
