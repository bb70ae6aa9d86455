// Tokens guessed ahead: texts are those without guesses, whatever is guessed.
#include "serve/draft.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>

#include "base/rng.h"
#include "serve/engine.h"
#include "tests/serve/virtual_ring.h"

namespace weft::serve {
namespace {

constexpr int64_t kContext = 64, kVocabulary = 50;

void append_logits(std::span<const int64_t> tokens, std::vector<float>& logits) {
  uint64_t hash = 1;
  for (const int64_t token : tokens) hash = hash * 6364136223846793005u + static_cast<uint64_t>(token) + 7;
  Rng rng(hash, 0);
  for (int64_t i = 0; i < kVocabulary; ++i) logits.push_back(static_cast<float>(rng.normal()));
}
Draw next_of(std::span<const int64_t> tokens, const SamplingOptions& options) {
  std::vector<float> logits;
  append_logits(tokens, logits);
  return *draw_token(logits, options, static_cast<int64_t>(tokens.size()));
}

// Right by a coin that hangs on seed and position; else another token, or none that the model has.
class Coin final : public Draft {
 public:
  Coin(uint64_t seed, double right) : seed_(seed), right_(right) {}
  std::vector<int64_t> propose(uint64_t, std::span<const int64_t> tokens, const SamplingOptions& options,
                               int64_t count) override {
    std::vector<int64_t> text(tokens.begin(), tokens.end()), guesses;
    for (int64_t i = 0; i < count; ++i) {
      Rng rng(seed_, text.size());
      const int64_t right = next_of(text, options).token;
      const bool errs = rng.uniform() >= right_;
      guesses.push_back(!errs ? right : rng.below(8) == 0 ? kVocabulary : (right + 1) % kVocabulary);
      text.push_back(guesses.back());
    }
    guessed += count;
    return guesses;
  }
  int64_t guessed = 0;

 private:
  uint64_t seed_;
  double right_;
};

class Text final : public Sequence {
 public:
  std::vector<int64_t> tokens;
  void set(int64_t first, std::span<const int64_t> more) {
    tokens.resize(static_cast<size_t>(first));
    tokens.insert(tokens.end(), more.begin(), more.end());
    length_ = static_cast<int64_t>(tokens.size());
  }
  void append_to(std::vector<float>& logits, int64_t rows) const {
    for (int64_t row = rows; row-- > 0;)
      append_logits(std::span(tokens).first(tokens.size() - static_cast<size_t>(row)), logits);
  }
};

// Of those that are served still.
std::vector<float> left_of(const Engine& engine, const Engine::Begun& begun,
                           const std::vector<float>& logits) {
  std::vector<float> left;
  auto next = logits.begin();
  for (const PassPiece& piece : begun.pieces) {
    const auto end = next + piece.logits * kVocabulary;
    if (engine.wants(begun.number, piece.sequence)) left.insert(left.end(), next, end);
    next = end;
  }
  return left;
}

dag::Tensor tensor_of(const std::vector<float>& logits) {
  return dag::make_tensor({static_cast<int64_t>(logits.size()) / kVocabulary, kVocabulary}, logits);
}

class Model final : public Decoder {
 public:
  int64_t context() const override { return kContext; }
  int64_t vocabulary() const override { return kVocabulary; }
  int64_t rows_max() const override { return 16; }
  Bytes bytes_of(int64_t positions) const override { return {positions}; }
  std::unique_ptr<Sequence> begin() override { return std::make_unique<Text>(); }
  void cut(Sequence& sequence, int64_t length) override { static_cast<Text&>(sequence).set(length, {}); }
  Result<dag::Tensor> pass(std::span<const Piece> pieces) override {
    std::vector<float> logits;
    for (const Piece& piece : pieces) {
      auto& text = static_cast<Text&>(*piece.sequence);
      text.set(text.length(), piece.tokens);
      rows += static_cast<int64_t>(piece.tokens.size());
      EXPECT_TRUE(piece.expected == 0 || text.length() <= piece.expected);
      text.append_to(logits, piece.logits);
    }
    ++passes;
    return tensor_of(logits);
  }
  // As a ring would, which keeps texts by their numbers.
  std::vector<float> run(const Engine::Begun& begun) {
    std::vector<float> logits;
    std::span<const int64_t> tokens = begun.tokens;
    for (const PassPiece& piece : begun.pieces) {
      if (piece.ends()) {
        kept_.erase(piece.sequence);
        continue;
      }
      Text& text = kept_[piece.sequence];
      EXPECT_LE(piece.first, text.length());
      EXPECT_LE(piece.first + piece.count, piece.expected);
      text.set(piece.first, tokens.first(static_cast<size_t>(piece.count)));
      tokens = tokens.subspan(static_cast<size_t>(piece.count));
      text.append_to(logits, piece.logits);
    }
    EXPECT_TRUE(tokens.empty());
    return logits;
  }
  void forget() { kept_.clear(); }
  int64_t passes = 0, rows = 0;

 private:
  std::map<uint64_t, Text> kept_;
};

struct Heard {
  std::vector<int64_t> tokens;
  std::vector<double> probabilities;
  std::vector<Finish> ends;
};
Listener to(Heard& heard) {
  return {.on_token =
              [&heard](const Generated& generated) {
                heard.tokens.push_back(generated.draw.token);
                heard.probabilities.push_back(generated.draw.log_probability);
                return heard.tokens.size() < 25;
              },
          .on_end = [&heard](Finish finish, const Status&) { heard.ends.push_back(finish); }};
}

Heard alone(const Request& request) {
  Model model;
  Engine engine(model, {.cache_bytes = {kContext}});
  Heard heard;
  EXPECT_TRUE(engine.add(request, to(heard)));
  while (!engine.tick().idle) {
  }
  return heard;
}

std::vector<Request> random_requests(Rng& rng) {
  std::vector<Request> requests(1 + rng.below(8));
  for (Request& request : requests) {
    for (uint64_t left = 1 + rng.below(20); left > 0; --left)
      request.prompt.push_back(static_cast<int64_t>(rng.below(kVocabulary)));
    request.tokens_max = rng.below(8) == 0 ? -1 : static_cast<int64_t>(1 + rng.below(40));
    request.sampling = {
        .temperature = rng.below(2) == 0 ? 0 : 0.8, .seed = rng.next_u64(), .alternatives = 2};
    if (rng.below(2) == 0) request.ends = {static_cast<int64_t>(rng.below(kVocabulary))};
  }
  return requests;
}

void expect_as_alone(const std::vector<Request>& requests, const std::vector<Heard>& heard) {
  for (size_t i = 0; i < heard.size(); ++i) {
    const Heard wanted = alone(requests[i]);
    EXPECT_EQ(heard[i].tokens, wanted.tokens) << "request " << i;
    EXPECT_EQ(heard[i].probabilities, wanted.probabilities) << "request " << i;
    EXPECT_EQ(heard[i].ends, wanted.ends) << "request " << i;
  }
}

TEST(Draft, TextsAreThoseWithoutIt) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 0);
    const auto draft = std::make_shared<Coin>(seed, rng.uniform() * 1.1);
    Model model;
    Engine engine(model, {.cache_bytes = {150}, .sequences_max = 6, .prompt_rows = 3, .draft = draft});
    const auto requests = random_requests(rng);
    std::vector<Heard> heard(requests.size());
    for (size_t i = 0; i < heard.size(); ++i) ASSERT_TRUE(engine.add(requests[i], to(heard[i])));
    while (!engine.tick().idle) {
    }
    expect_as_alone(requests, heard);
    EXPECT_EQ(engine.granted(), Bytes{0});
  }
}

TEST(Draft, TextsAreThoseWithoutItWithPassesUnderWay) {
  int64_t ahead = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 1);
    const auto draft = std::make_shared<Coin>(seed, rng.uniform() * 1.1);
    Model model;
    Engine engine(static_cast<const ModelLimits&>(model), {.cache_bytes = {150},
                                                           .sequences_max = 6,
                                                           .prompt_rows = 3,
                                                           .passes_max = 1 + seed % 5,
                                                           .draft = draft,
                                                           .passes_shared = rng.below(1 + seed % 5),
                                                           .draft_rows = 1 + static_cast<int64_t>(seed % 3)});
    const auto requests = random_requests(rng);
    std::vector<Heard> heard(requests.size());
    for (size_t i = 0; i < heard.size(); ++i) ASSERT_TRUE(engine.add(requests[i], to(heard[i])));
    std::deque<std::pair<Engine::Begun, std::vector<float>>> computed;
    bool lost = seed % 2 == 0;
    for (int moves = 0; moves < 20000 && engine.serving() + engine.waiting() > 0; ++moves) {
      if (auto begun = engine.begin()) {
        auto logits = model.run(*begun);
        for (const auto& [other, rows] : computed)
          for (const PassPiece& piece : other.pieces)
            for (const PassPiece& mine : begun->pieces)
              ahead += piece.sequence == mine.sequence && piece.logits > 0 ? 1 : 0;
        computed.emplace_back(std::move(*begun), std::move(logits));
      }
      if (!computed.empty() && rng.below(3) == 0) {
        const auto& [begun, rows] = computed.front();
        ASSERT_TRUE(engine.finish(begun.number, tensor_of(left_of(engine, begun, rows))).status);
        computed.pop_front();
      }
      if (!lost && moves > 20 && rng.below(20) == 0) {
        lost = true;
        computed.clear();
        engine.restart();
        model.forget();
      }
    }
    expect_as_alone(requests, heard);
    EXPECT_EQ(engine.granted(), Bytes{0});
  }
  EXPECT_GT(ahead, 1000);  // sequences that were in several passes at once
}

TEST(Draft, PassesFinishInOrder) {
  const auto draft = std::make_shared<Coin>(0, 1);
  Model model;
  Engine engine(static_cast<const ModelLimits&>(model),
                {.cache_bytes = {150}, .passes_max = 2, .draft = draft});
  Heard heard;
  ASSERT_TRUE(engine.add({.prompt = std::vector<int64_t>(20, 1), .tokens_max = 9}, to(heard)));
  const auto first = engine.begin(), second = engine.begin();
  ASSERT_TRUE(first && second);
  const auto logits = tensor_of(model.run(*first)), more = tensor_of(model.run(*second));
  EXPECT_EQ(engine.finish(second->number, more).status.error().code, ErrorCode::InvalidArgument);
  EXPECT_TRUE(engine.finish(first->number, logits).status);
  EXPECT_TRUE(engine.finish(second->number, more).status);
  EXPECT_EQ(heard.tokens.size(), 1u);
}

// With rows that cost a seventh each, against one pass a token.
TEST(Draft, CostIsNeverMuchAboveNone) {
  for (const double right : {0.0, 0.05, 0.1, 0.2, 0.5, 0.8, 0.95, 1.0}) {
    double cost = 0, without = 0;
    for (uint64_t seed = 0; seed < 60; ++seed) {
      const auto draft = std::make_shared<Coin>(seed, right);
      Model model, plain;
      Engine engine(model, {.draft = draft}), other(plain, {});
      Request request{.prompt = {1}, .tokens_max = 60, .sampling = {.seed = seed}};
      Heard heard, wanted;
      const auto all = [](Heard& into) {
        Listener listener = to(into);
        listener.on_token = [&into](const Generated& generated) {
          into.tokens.push_back(generated.draw.token);
          return true;
        };
        return listener;
      };
      ASSERT_TRUE(engine.add(request, all(heard)) && other.add(request, all(wanted)));
      while (!engine.tick().idle) {
      }
      while (!other.tick().idle) {
      }
      EXPECT_EQ(heard.tokens, wanted.tokens);
      cost += static_cast<double>(model.passes) + static_cast<double>(model.rows - model.passes) / 7;
      without += static_cast<double>(plain.passes);
    }
    RecordProperty("cost", std::to_string(right) + ": " + std::to_string(cost / without));
    EXPECT_LE(cost, without * 1.05) << "right " << right;
    if (right >= 0.8) {
      EXPECT_LT(cost, without * 0.6) << "right " << right;
    }
  }
}

// On a clock that is computed: 40 ms and almost nothing between stages of 2 ms, alone and with many others.
TEST(Draft, ARingIsNeverMuchSlowerWithIt) {
  for (const double hop_ms : {0.1, 20.0})
    for (const int streams : {1, 4, 16, 64})
      for (const double right : {0.0, 0.1, 0.2, 0.5, 0.8, 0.9}) {
        const testing::RingTimes times{.hop_ms = hop_ms};
        const int64_t tokens = 1600 / streams;
        const size_t passes = testing::passes_of(times);
        const double with = testing::rate_of(times, streams, tokens, passes, right, 7).tokens_a_second;
        const double without = testing::rate_of(times, streams, tokens, passes, right, 0).tokens_a_second;
        EXPECT_GT(with, 0.95 * without) << hop_ms << " ms, " << streams << " streams, right " << right;
        if (streams == 1 && right == 0.9) {
          EXPECT_GT(with, 4 * without) << hop_ms << " ms";
        }
      }
}

// The model itself, as a small one would be: it draws with the same noise, so that each guess is right, at
// any temperature; only those behind the text's last tokens are of no use.
TEST(DecoderDraft, GuessesWhatTheModelDraws) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 3);
    Model model;
    const auto draft = std::make_shared<DecoderDraft>(std::make_unique<Model>(), 0);
    Engine engine(model, {.cache_bytes = {6 * kContext}, .prompt_rows = 3, .draft = draft});
    const auto requests = random_requests(rng);
    std::vector<Heard> heard(requests.size());
    for (size_t i = 0; i < heard.size(); ++i) ASSERT_TRUE(engine.add(requests[i], to(heard[i])));
    int64_t guessed = 0, accepted = 0, ended = 0;
    for (auto tick = engine.tick(); !tick.idle; tick = engine.tick())
      guessed += tick.guessed, accepted += tick.accepted;
    for (const Heard& one : heard) ended += one.ends.empty() ? 0 : 1;
    expect_as_alone(requests, heard);
    EXPECT_GE(accepted, guessed - 7 * ended);
    EXPECT_EQ(draft->sequences(), 0u);
  }
}

TEST(DecoderDraft, CutsBackAndKeepsToItsContext) {
  DecoderDraft draft(std::make_unique<Model>(), 0.1);
  const std::vector<int64_t> text{3, 1, 4, 1, 5, 9, 2, 6};
  const SamplingOptions sampling{.temperature = 0.8, .seed = 5, .alternatives = 3};
  const auto all = draft.propose(1, text, sampling, 5);
  ASSERT_EQ(all.size(), 5u);
  std::vector<int64_t> longer = text;
  longer.insert(longer.end(), all.begin(), all.begin() + 2);
  EXPECT_EQ(draft.propose(1, longer, sampling, 3), std::vector<int64_t>(all.begin() + 2, all.end()));
  EXPECT_EQ(draft.propose(1, text, sampling, 5), all);  // from where it was before
  const std::vector<int64_t> other{2, 7, 1};
  DecoderDraft fresh(std::make_unique<Model>(), 0.1);
  EXPECT_EQ(draft.propose(1, other, sampling, 4), fresh.propose(9, other, sampling, 4));
  const std::vector<int64_t> full(kContext - 2, 1);
  EXPECT_EQ(draft.propose(2, full, sampling, 9).size(), 2u);
  EXPECT_TRUE(draft.propose(3, std::vector<int64_t>(kContext, 1), sampling, 9).empty());
  EXPECT_TRUE(draft.propose(4, {}, sampling, 9).empty());
  EXPECT_TRUE(draft.propose(4, text, sampling, 0).empty());
}

std::vector<int64_t> ngram(std::vector<int64_t> tokens, int64_t count, size_t window = 4096) {
  return NgramDraft(4, window).propose(1, tokens, {}, count);
}

TEST(NgramDraft, FollowsTheLongestRepetition) {
  EXPECT_EQ(ngram({}, 3), std::vector<int64_t>{});
  EXPECT_EQ(ngram({1, 2, 3}, 3), std::vector<int64_t>{});
  EXPECT_EQ(ngram({1, 2, 3, 1}, 3), (std::vector<int64_t>{2, 3, 1}));
  EXPECT_EQ(ngram({1, 2, 7, 5, 2, 8, 1, 2}, 2), (std::vector<int64_t>{7, 5}));  // two tokens beat a later one
  EXPECT_EQ(ngram({2, 7, 2, 8, 2}, 1), std::vector<int64_t>{8});                // the latest of equal ones
  EXPECT_EQ(ngram({4, 4}, 5), std::vector<int64_t>{4});
  EXPECT_EQ(ngram({1, 2, 3, 1}, 0), std::vector<int64_t>{});
  EXPECT_EQ(ngram({1, 2, 3, 1}, 3, 3), std::vector<int64_t>{});  // beyond the window
}

}  // namespace
}  // namespace weft::serve
