#include "serve/draft.h"

#include <algorithm>
#include <cmath>

#include "base/rng.h"

namespace weft::serve {
namespace {

// Of the tokens before `end`, how many are the last ones of the text too.
size_t common_suffix(std::span<const int64_t> text, size_t end, size_t most) {
  size_t length = 0;
  while (length < std::min(most, end) && text[end - 1 - length] == text[text.size() - 1 - length]) ++length;
  return length;
}

SamplingOptions without_alternatives(const SamplingOptions& options) {
  SamplingOptions drawn = options;
  drawn.alternatives = -1;
  return drawn;
}

}  // namespace

std::vector<int64_t> NgramDraft::propose(uint64_t, std::span<const int64_t> tokens, const SamplingOptions&,
                                         int64_t count) {
  const auto text = tokens.last(std::min(tokens.size(), window_));
  size_t longest = 0, place = 0;
  for (size_t end = text.size(); end-- > 1 && longest < suffix_max_;) {
    const size_t length = common_suffix(text, end, suffix_max_);
    if (length > longest) longest = length, place = end;
  }
  if (longest == 0 || count <= 0) return {};
  const auto follows = text.subspan(place, std::min(text.size() - place, static_cast<size_t>(count)));
  return {follows.begin(), follows.end()};
}

// Behind what the sequence has; the logits of the last one.
Result<dag::Tensor> DecoderDraft::read(Read& read, std::span<const int64_t> tokens) {
  Result<dag::Tensor> logits = fail(ErrorCode::InvalidArgument, "nothing to read");
  while (!tokens.empty()) {
    const auto some = tokens.first(std::min(tokens.size(), static_cast<size_t>(decoder_->rows_max())));
    tokens = tokens.subspan(some.size());
    const Piece piece{read.sequence.get(), some, tokens.empty() ? 1 : 0};
    WEFT_TRY(logits, decoder_->pass({&piece, 1}));
    read.tokens.insert(read.tokens.end(), some.begin(), some.end());
  }
  return logits;
}

std::vector<int64_t> DecoderDraft::propose(uint64_t sequence, std::span<const int64_t> tokens,
                                           const SamplingOptions& options, int64_t count) {
  const auto known = static_cast<int64_t>(tokens.size());
  count = std::min(count, decoder_->context() - known);
  if (known == 0 || count <= 0) return {};
  Read& read = read_[sequence];
  if (!read.sequence) read.sequence = decoder_->begin();
  // The last one is computed again, for its logits.
  const auto differs =
      std::mismatch(tokens.begin(), tokens.end() - 1, read.tokens.begin(), read.tokens.end());
  const auto same = static_cast<size_t>(differs.first - tokens.begin());
  read.tokens.resize(same);
  decoder_->cut(*read.sequence, static_cast<int64_t>(same));
  const SamplingOptions drawing = without_alternatives(options);
  std::vector<int64_t> guesses;
  std::span<const int64_t> next = tokens.subspan(same);
  while (static_cast<int64_t>(guesses.size()) < count) {
    const auto logits = this->read(read, next);
    if (!logits) break;
    const auto draw = draw_token(logits->as<float>(), drawing, known + static_cast<int64_t>(guesses.size()));
    if (!draw) break;
    guesses.push_back(draw->token);
    next = std::span(guesses).last(1);
  }
  return guesses;
}

std::vector<int64_t> CoinDraft::propose(uint64_t, std::span<const int64_t> tokens,
                                        const SamplingOptions& options, int64_t count) {
  std::vector<int64_t> guesses;
  for (auto position = static_cast<int64_t>(tokens.size()); count-- > 0; ++position) {
    const auto draw = draw_token(logits_, without_alternatives(options), position);
    if (!draw) break;
    Rng coin(seed_ + options.seed, static_cast<uint64_t>(position));
    const bool is_right = coin.uniform() < right_;
    guesses.push_back(is_right ? draw->token : (draw->token + 1) % static_cast<int64_t>(logits_.size()));
  }
  return guesses;
}

void DraftDepth::count(bool right) {
  all_ = all_ * (1 - kForget) + 1;
  right_ = right_ * (1 - kForget) + (right ? 1 : 0);
}

// A further row adds a token if all guesses before it are right. It is taken while tokens for each unit of
// time become more by it.
int64_t DraftDepth::next(int64_t ahead, int64_t most, double cost) {
  double right = 1, tokens = 1, all = 1;
  int64_t depth = -ahead;
  while (depth < most) {
    right *= acceptance();
    if (depth >= 0 && right * all <= cost * tokens) break;
    tokens += right, all += cost, ++depth;
  }
  if (depth > 0 || ahead > 0 || most <= 0) return depth;
  if (tokens_without_ < kTryEvery) return 0;
  tokens_without_ = 0;
  return 1;
}

}  // namespace weft::serve
