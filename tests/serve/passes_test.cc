// An engine without a decoder: passes that begin and finish, several of them under way.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <set>

#include "base/rng.h"
#include "serve/engine.h"

namespace weft::serve {
namespace {

constexpr int64_t kContext = 64, kVocabulary = 50;

class Limits final : public ModelLimits {
 public:
  int64_t context() const override { return kContext; }
  int64_t vocabulary() const override { return kVocabulary; }
  int64_t rows_max() const override { return 8; }
  Bytes bytes_of(int64_t positions) const override { return {positions}; }
};

// A hash of all tokens so far: whoever mixes up sequences or positions draws something else.
void append_logits(const std::vector<int64_t>& tokens, std::vector<float>& logits) {
  uint64_t hash = 1;
  for (const int64_t token : tokens) hash = hash * 6364136223846793005u + static_cast<uint64_t>(token) + 7;
  Rng rng(hash, 0);
  for (int64_t i = 0; i < kVocabulary; ++i) logits.push_back(static_cast<float>(rng.normal()));
}

// What a ring would compute: of pieces alone, with what it has kept.
class Model {
 public:
  dag::Tensor run(const Engine::Begun& begun) {
    std::vector<float> logits;
    auto next = begun.tokens.begin();
    for (const PassPiece& piece : begun.pieces) {
      if (piece.ends()) {
        kept_.erase(piece.sequence);
        continue;
      }
      std::vector<int64_t>& tokens = kept_[piece.sequence];
      EXPECT_LE(piece.first, static_cast<int64_t>(tokens.size()));
      tokens.resize(static_cast<size_t>(piece.first));
      tokens.insert(tokens.end(), next, next + piece.count);
      next += piece.count;
      if (piece.logits > 0) append_logits(tokens, logits);
    }
    EXPECT_EQ(next, begun.tokens.end());
    return dag::make_tensor({static_cast<int64_t>(logits.size()) / kVocabulary, kVocabulary}, logits);
  }
  size_t sequences() const { return kept_.size(); }

 private:
  std::map<uint64_t, std::vector<int64_t>> kept_;
};

struct Heard {
  std::vector<int64_t> tokens;
  std::vector<Finish> ends;
  Status status;
};
Listener to(Heard& heard) {
  return {.on_token =
              [&heard](const Generated& generated) {
                heard.tokens.push_back(generated.draw.token);
                return true;
              },
          .on_end =
              [&heard](Finish finish, const Status& status) {
                heard.ends.push_back(finish);
                heard.status = status;
              }};
}

std::vector<int64_t> alone(const Request& request) {
  std::vector<int64_t> tokens = request.prompt;
  for (int64_t left = request.tokens_max; left > 0; --left) {
    std::vector<float> logits;
    append_logits(tokens, logits);
    tokens.push_back(draw_token(logits, request.sampling, static_cast<int64_t>(tokens.size()))->token);
  }
  return {tokens.begin() + static_cast<std::ptrdiff_t>(request.prompt.size()), tokens.end()};
}

Request random_request(Rng& rng) {
  Request request;
  for (uint64_t left = 1 + rng.below(20); left > 0; --left)
    request.prompt.push_back(static_cast<int64_t>(rng.below(kVocabulary)));
  request.tokens_max = 1 + static_cast<int64_t>(rng.below(20));
  request.sampling = {.temperature = 0.8, .seed = rng.next_u64()};
  return request;
}

const Limits kLimits;

// Begins whatever can be begun.
void begin_all(Engine& engine, std::deque<Engine::Begun>& under_way) {
  while (auto begun = engine.begin()) under_way.push_back(std::move(*begun));
}

// Passes are computed in the order in which they begin, and finish at any time and in any order.
TEST(Passes, TextsDoNotDependOnTheirOrder) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 0);
    Engine engine(kLimits,
                  {.cache_bytes = {150}, .sequences_max = 6, .prompt_rows = 3, .passes_max = 1 + seed % 4});
    Model model;
    std::vector<Request> requests;
    for (int i = 0; i < 9; ++i) requests.push_back(random_request(rng));
    std::vector<Heard> heard(requests.size());
    struct Computed {
      uint64_t number;
      dag::Tensor logits;
    };
    std::vector<Computed> computed;
    size_t added = 0;
    bool lost = false;
    const auto is_done = [&] {
      return added == requests.size() && engine.serving() + engine.waiting() + model.sequences() == 0;
    };
    for (int moves = 0; moves < 5000 && !is_done(); ++moves) {
      if (added < requests.size() && rng.below(3) == 0) {
        ASSERT_TRUE(engine.add(requests[added], to(heard[added])));
        ++added;
      }
      if (const auto begun = engine.begin()) computed.push_back({begun->number, model.run(*begun)});
      ASSERT_LE(computed.size(), 1 + seed % 4);
      if (!computed.empty() && rng.below(2) == 0) {
        const auto one = computed.begin() + static_cast<std::ptrdiff_t>(rng.below(computed.size()));
        EXPECT_TRUE(engine.finish(one->number, one->logits).status);
        computed.erase(one);
      }
      if (!lost && added > 4 && seed % 2 == 0 && rng.below(20) == 0) {
        lost = true;
        computed.clear();
        engine.restart();
        model = {};
      }
    }
    for (size_t i = 0; i < heard.size(); ++i) {
      EXPECT_EQ(heard[i].tokens, alone(requests[i])) << "request " << i;
      EXPECT_EQ(heard[i].ends, std::vector{Finish::Length});
    }
    EXPECT_TRUE(is_done());
    EXPECT_EQ(engine.granted(), Bytes{0});
  }
}

std::vector<int64_t> rows_of(const std::deque<Engine::Begun>& passes) {
  std::vector<int64_t> rows;
  for (const Engine::Begun& pass : passes) rows.push_back(row_count(pass.pieces));
  return rows;
}

TEST(Passes, ThatAreUnderWayAtOnceHaveEqualShares) {
  Engine engine(kLimits, {.passes_max = 4});
  Model model;
  std::vector<Heard> heard(7);
  for (size_t i = 0; i < 7; ++i)
    ASSERT_TRUE(engine.add({.prompt = {static_cast<int64_t>(i)}, .tokens_max = 30}, to(heard[i])));
  std::deque<Engine::Begun> under_way;
  begin_all(engine, under_way);
  EXPECT_EQ(rows_of(under_way), (std::vector<int64_t>{7}));  // the prompts
  ASSERT_TRUE(engine.finish(1, model.run(under_way.front())).status);
  under_way.clear();
  begin_all(engine, under_way);
  EXPECT_EQ(rows_of(under_way), (std::vector<int64_t>{2, 2, 2, 1}));
  for (int i = 0; i < 40; ++i) {
    ASSERT_TRUE(engine.finish(under_way.front().number, model.run(under_way.front())).status);
    under_way.pop_front();
    begin_all(engine, under_way);
    EXPECT_EQ(under_way.size(), 4u);
  }
  const auto [least, most] =
      std::minmax_element(heard.begin(), heard.end(),
                          [](const Heard& a, const Heard& b) { return a.tokens.size() < b.tokens.size(); });
  EXPECT_LE(most->tokens.size() - least->tokens.size(), 2u);
}

TEST(Passes, ARequestGoesOnFromWhatWasDrawn) {
  const Request request{.prompt = {3, 1}, .tokens_max = 12, .sampling = {.temperature = 0.9, .seed = 5}};
  const std::vector<int64_t> text = alone(request);
  for (int64_t drawn = 0; drawn < 12; ++drawn) {
    Engine engine(kLimits, {});
    Model model;
    Request rest = request;
    rest.prompt.insert(rest.prompt.end(), text.begin(), text.begin() + drawn);
    rest.tokens_max -= drawn;
    Heard heard;
    ASSERT_TRUE(engine.add(rest, to(heard)));
    while (const auto begun = engine.begin()) engine.finish(begun->number, model.run(*begun));
    EXPECT_EQ(heard.tokens, std::vector<int64_t>(text.begin() + drawn, text.end()));
    EXPECT_EQ(heard.ends, std::vector{Finish::Length});
  }
}

TEST(Passes, ThatAreUnknownChangeNothingAndThatFailEndTheirOwn) {
  Engine engine(kLimits, {.sequences_max = 1, .passes_max = 2});
  Model model;
  const Request request{.prompt = {1}, .tokens_max = 3};
  std::vector<Heard> heard(3);
  for (Heard& one : heard) ASSERT_TRUE(engine.add(request, to(one)));
  auto begun = engine.begin();
  ASSERT_TRUE(begun);
  const dag::Tensor logits = model.run(*begun);
  const auto unknown = engine.finish(begun->number + 1, logits);
  EXPECT_TRUE(unknown.idle);
  EXPECT_EQ(unknown.status.error().code, ErrorCode::InvalidArgument);
  EXPECT_TRUE(engine.finish(begun->number, logits).status);
  EXPECT_FALSE(engine.finish(begun->number, logits).status);  // it has been
  EXPECT_EQ(heard[0].tokens.size(), 1u);
  begun = engine.begin();
  EXPECT_FALSE(engine.finish(begun->number, fail(ErrorCode::Unavailable, "gone")).status);
  EXPECT_EQ(heard[0].ends, std::vector{Finish::Failed});
  EXPECT_EQ(heard[0].status.error().code, ErrorCode::Unavailable);
  begun = engine.begin();  // the next, and the end of the first
  ASSERT_EQ(begun->pieces.size(), 2u);
  EXPECT_TRUE(begun->pieces[0].ends());
  const auto odd = engine.finish(begun->number, dag::Tensor({dag::DType::F32, {1, kVocabulary + 1}}));
  EXPECT_EQ(odd.status.error().code, ErrorCode::Internal);
  EXPECT_EQ(heard[1].ends, std::vector{Finish::Failed});
  begun = engine.begin();  // what may not have been told is told again
  ASSERT_EQ(begun->pieces.size(), 2u);
  EXPECT_EQ(begun->pieces[0], (PassPiece{.sequence = 1}));
  begun = engine.begin();  // no more ends in a pass than there may be sequences
  ASSERT_TRUE(begun);
  EXPECT_EQ(begun->pieces, (std::vector<PassPiece>{{.sequence = 2}}));
}

// What a pass under way has of it is no longer asked for.
TEST(Passes, WhoIsCancelledUnderWayEndsAtOnce) {
  Engine engine(kLimits, {.passes_max = 2});
  Model model;
  Heard cancelled, other;
  const auto id = engine.add({.prompt = {1}, .tokens_max = 3}, to(cancelled));
  ASSERT_TRUE(engine.add({.prompt = {2}, .tokens_max = 1}, to(other)));
  const auto begun = engine.begin();
  const dag::Tensor logits = model.run(*begun);
  engine.cancel(*id);
  const auto end = engine.begin();
  EXPECT_EQ(cancelled.ends, std::vector{Finish::Cancelled});
  ASSERT_TRUE(end);
  EXPECT_EQ(end->pieces, (std::vector<PassPiece>{{.sequence = *id}}));
  const dag::Tensor left = dag::make_tensor({1, kVocabulary}, logits.as<float>().subspan(kVocabulary));
  EXPECT_TRUE(engine.finish(begun->number, left).status);
  EXPECT_TRUE(cancelled.tokens.empty());
  EXPECT_EQ(other.tokens, alone({.prompt = {2}, .tokens_max = 1}));
}

TEST(Passes, APromptIsInSeveral) {
  Engine engine(kLimits, {.passes_max = 4});
  Model model;
  Heard heard;
  const Request request{.prompt = std::vector<int64_t>(30, 3), .tokens_max = 2};
  ASSERT_TRUE(engine.add(request, to(heard)));
  std::deque<Engine::Begun> under_way;
  begin_all(engine, under_way);
  EXPECT_EQ(rows_of(under_way), (std::vector<int64_t>{8, 8, 8, 6}));
  for (const Engine::Begun& pass : under_way) EXPECT_TRUE(engine.finish(pass.number, model.run(pass)).status);
  EXPECT_EQ(heard.tokens.size(), 1u);
  while (const auto begun = engine.begin()) engine.finish(begun->number, model.run(*begun));
  EXPECT_EQ(heard.tokens, alone(request));
}

}  // namespace
}  // namespace weft::serve
