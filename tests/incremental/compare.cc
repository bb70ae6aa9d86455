#include "tests/incremental/compare.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "peer/backend/reference/reference_kernels.h"

namespace weft::incremental::testing {

using dag::Tensor;
using serve::Decoder;
using serve::Piece;
using serve::Sequence;
using Tokens = std::vector<int64_t>;

Result<std::shared_ptr<const dag::Incremental>> derive(const Model& model, int64_t folded_elements_max) {
  dag::IncrementalOptions options{.tokens = model.tokens, .logits = {}, .evaluate = peer::evaluate_reference};
  options.weights = &model.weights;
  options.folded_elements_max = folded_elements_max;
  WEFT_TRY(dag::Incremental made, dag::Incremental::derive(model.graph, dag::op_table(), options));
  return std::make_shared<const dag::Incremental>(std::move(made));
}

namespace {

Tokens draw_tokens(Rng& rng, int64_t count, int64_t vocabulary) {
  Tokens tokens;
  while (static_cast<int64_t>(tokens.size()) < count)
    tokens.push_back(static_cast<int64_t>(rng.below(static_cast<uint64_t>(vocabulary))));
  return tokens;
}

// A text with the logits of the whole window.
struct Text {
  Tokens tokens;
  Tensor logits;  // [length, vocabulary]
};

class Comparison {
 public:
  Comparison(Decoder& cached, Decoder& window, uint64_t seed)
      : cached_(cached), window_(window), rng_(seed, 1) {}

  Text new_text() {
    Text text{draw_tokens(rng_, cached_.context(), cached_.vocabulary()), {}};
    text.logits = whole(text.tokens);
    return text;
  }
  // The same to `from`, others from there on.
  Text new_end(const Text& text, int64_t from) {
    Text other{text.tokens, {}};
    for (size_t i = static_cast<size_t>(from); i < other.tokens.size(); ++i)
      other.tokens[i] = (other.tokens[i] + 1 + static_cast<int64_t>(i % 3)) % cached_.vocabulary();
    other.logits = whole(other.tokens);
    return other;
  }

  void by_chunks(const Text& text, int64_t chunk) {
    const auto sequence = cached_.begin();
    for (int64_t at = 0; at < cached_.context(); at += chunk) {
      const int64_t count = std::min(chunk, cached_.context() - at);
      pass({{text, sequence.get(), count, count}}, "chunks of " + std::to_string(chunk));
    }
  }

  // Pieces of several texts, at random; now and then one is cut and goes on.
  void packed(const std::vector<Text>& texts, int passes) {
    std::vector<std::unique_ptr<Sequence>> sequences;
    for (size_t i = 0; i < texts.size(); ++i) sequences.push_back(cached_.begin());
    for (int turn = 0; turn < passes; ++turn) {
      std::vector<Step> steps;
      for (size_t i = 0; i < texts.size(); ++i) {
        Sequence& sequence = *sequences[i];
        if (rng_.below(4) == 0) continue;
        if (rng_.below(8) == 0 || sequence.length() == cached_.context())
          cached_.cut(sequence,
                      static_cast<int64_t>(rng_.below(static_cast<uint64_t>(sequence.length()) + 1)));
        const int64_t left = cached_.context() - sequence.length();
        if (left == 0) continue;
        const int64_t most = rng_.below(2) == 0 ? 1 : std::min<int64_t>(left, 16);
        const int64_t count = 1 + static_cast<int64_t>(rng_.below(static_cast<uint64_t>(most)));
        const int64_t logits = static_cast<int64_t>(rng_.below(static_cast<uint64_t>(count) + 1));
        steps.push_back({texts[i], &sequence, count, logits});
      }
      if (!steps.empty()) pass(steps, "packed, turn " + std::to_string(turn));
    }
  }

  // Cut in the middle, where another text goes on.
  void other_end(const Text& text) {
    const int64_t from = cached_.context() / 2;
    const Text other = new_end(text, from);
    const auto bytes = static_cast<size_t>(from * cached_.vocabulary()) * sizeof(float);
    EXPECT_EQ(std::memcmp(text.logits.bytes().data(), other.logits.bytes().data(), bytes), 0)
        << "later tokens change earlier rows of the window";
    const auto sequence = cached_.begin();
    for (int64_t at = 0; at < cached_.context(); at += 64) {
      const int64_t count = std::min<int64_t>(64, cached_.context() - at);
      pass({{text, sequence.get(), count, 1}}, "before the cut");
    }
    if (::testing::Test::HasFailure()) return;
    cached_.cut(*sequence, from);
    while (sequence->length() < cached_.context() && !::testing::Test::HasFailure()) {
      const int64_t count = std::min<int64_t>(5, cached_.context() - sequence->length());
      pass({{other, sequence.get(), count, count}}, "after the cut");
    }
  }

 private:
  struct Step {
    const Text& text;
    Sequence* sequence;
    int64_t count, logits;
  };

  Tensor whole(const Tokens& tokens) {
    const auto sequence = window_.begin();
    const Piece piece{sequence.get(), tokens, static_cast<int64_t>(tokens.size())};
    auto logits = window_.pass({&piece, 1});
    EXPECT_TRUE(logits) << logits.error().message;
    return *logits;
  }

  void pass(const std::vector<Step>& steps, const std::string& when) {
    if (::testing::Test::HasFailure()) return;
    std::vector<Piece> pieces;
    std::vector<int64_t> from;
    for (const Step& step : steps) {
      from.push_back(step.sequence->length());
      pieces.push_back({step.sequence,
                        std::span(step.text.tokens)
                            .subspan(static_cast<size_t>(from.back()), static_cast<size_t>(step.count)),
                        step.logits});
    }
    const auto logits = cached_.pass(pieces);
    ASSERT_TRUE(logits) << logits.error().message;
    int64_t row = 0;
    for (size_t i = 0; i < steps.size(); ++i)
      for (int64_t k = steps[i].count - steps[i].logits; k < steps[i].count; ++k)
        expect_row(*logits, row++, steps[i].text, from[i] + k, when);
    EXPECT_EQ(row, logits->shape()[0]);
  }
  void expect_row(const Tensor& logits, int64_t row, const Text& text, int64_t position,
                  const std::string& when) {
    const auto width = static_cast<size_t>(cached_.vocabulary());
    const auto made = logits.as<float>().subspan(static_cast<size_t>(row) * width, width);
    const auto wanted = text.logits.as<float>().subspan(static_cast<size_t>(position) * width, width);
    EXPECT_EQ(std::memcmp(made.data(), wanted.data(), width * sizeof(float)), 0)
        << when << ", position " << position << ": " << made[0] << " where the window has " << wanted[0];
  }

  Decoder &cached_, &window_;
  Rng rng_;
};

}  // namespace

void expect_equal_bits(const Model& model, peer::Backend& backend, uint64_t seed, const Effort& effort) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  const auto incremental = derive(model);
  ASSERT_TRUE(incremental) << incremental.error().message;
  const auto cached = serve::make_cached_decoder(*incremental, model.weights,
                                                 std::make_shared<peer::State>(backend), {.rows_max = 256});
  ASSERT_TRUE(cached) << cached.error().message;
  const auto window = serve::make_window_decoder(*model.graph, model.weights, model.tokens, {},
                                                 std::make_shared<peer::State>(backend));
  ASSERT_TRUE(window) << window.error().message;
  Comparison comparison(**cached, **window, seed);
  std::vector<Text> texts;
  for (int64_t i = 0; i < effort.sequences; ++i) texts.push_back(comparison.new_text());
  for (const int64_t chunk : effort.chunks) comparison.by_chunks(texts[0], chunk);
  comparison.packed(texts, effort.passes);
  comparison.other_end(texts[0]);
}

}  // namespace weft::incremental::testing
