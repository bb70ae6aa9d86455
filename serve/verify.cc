#include "serve/verify.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/rng.h"

namespace weft::serve {
namespace {

using dag::Tensor;

constexpr std::array<int64_t, 5> kPieces{1, 1, 7, 3, 12};  // positions at a time
constexpr int64_t kPositions = 24;

std::vector<int64_t> random_tokens(int64_t count, int64_t vocabulary, Rng& rng) {
  std::vector<int64_t> tokens;
  tokens.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i)
    tokens.push_back(static_cast<int64_t>(rng.below(static_cast<uint64_t>(vocabulary))));
  return tokens;
}

// All rows of the window; the first `count` are looked at.
Result<Tensor> first_rows(Decoder& window, std::span<const int64_t> tokens, int64_t count) {
  const auto sequence = window.begin();
  const Piece piece{sequence.get(), tokens, static_cast<int64_t>(tokens.size())};
  WEFT_TRY(const Tensor all, window.pass({&piece, 1}));
  return all.elements(0, count * window.vocabulary());
}

Result<std::vector<float>> in_pieces(Decoder& decoder, std::span<const int64_t> tokens) {
  std::vector<float> logits;
  const auto sequence = decoder.begin();
  size_t at = 0;
  for (size_t i = 0; at < tokens.size(); ++i) {
    const auto wanted = static_cast<size_t>(std::min(kPieces[i % kPieces.size()], decoder.rows_max()));
    const size_t count = std::min(wanted, tokens.size() - at);
    const Piece piece{sequence.get(), tokens.subspan(at, count), static_cast<int64_t>(count)};
    WEFT_TRY(const Tensor rows, decoder.pass({&piece, 1}));
    logits.insert(logits.end(), rows.as<float>().begin(), rows.as<float>().end());
    at += count;
  }
  return logits;
}

// The largest difference; nothing where all bits are equal.
std::optional<double> difference(std::span<const float> a, std::span<const float> b) {
  if (std::memcmp(a.data(), b.data(), a.size_bytes()) == 0) return std::nullopt;
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double by = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    worst = by <= worst ? worst : by;  // NaN is the worst
  }
  return worst;
}
double largest(std::span<const float> numbers) {
  double most = 0;
  for (const float number : numbers) most = std::max(most, std::abs(static_cast<double>(number)));
  return most;
}

}  // namespace

Status verify(Decoder& decoder, Decoder& window, bool exact) {
  Rng rng(1, 0);
  const int64_t context = window.context(), count = std::min(kPositions, context);
  std::vector<int64_t> tokens = random_tokens(context, window.vocabulary(), rng);
  WEFT_TRY(const Tensor expected, first_rows(window, tokens, count));
  const std::vector<int64_t> later = random_tokens(context - count, window.vocabulary(), rng);
  std::copy(later.begin(), later.end(), tokens.begin() + count);
  WEFT_TRY(const Tensor again, first_rows(window, tokens, count));
  const double tolerance = exact ? 0 : 1e-3 * largest(expected.as<float>());
  const auto changed = difference(expected.as<float>(), again.as<float>());
  if (changed && !(*changed <= tolerance))
    return fail(ErrorCode::Unsupported, "its first positions change by up to " + std::to_string(*changed) +
                                            " with the tokens behind them: it is no causal model");
  WEFT_TRY(const std::vector<float> logits,
           in_pieces(decoder, std::span(tokens).first(static_cast<size_t>(count))));
  const auto by = difference(expected.as<float>(), logits);
  if (by && !(*by <= tolerance))
    return fail(ErrorCode::Internal, "with caches its logits differ by up to " + std::to_string(*by) +
                                         " from those of the whole window");
  return {};
}

}  // namespace weft::serve
