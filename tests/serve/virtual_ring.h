// A ring whose stages and links take time on a clock that is computed, and compute nothing: of all logits
// those of token 0 are the largest. The engine at its entry is the real one. Of tests and of
// bench/guesses.cc.
#pragma once

#include <algorithm>
#include <array>
#include <deque>
#include <utility>
#include <vector>

#include "base/check.h"
#include "serve/engine.h"

namespace weft::serve::testing {

inline constexpr int64_t kVocabulary = 64, kContext = int64_t{1} << 20;
inline constexpr int kStages = 4;
inline constexpr double kBitsPerMs = 20e3, kRowBits = 768 * 4 * 8, kPassBits = 200 * 8;

struct RingTimes {
  double stage_ms = 2, row_ms = 0.3;  // of a pass with one row; of each row more
  double hop_ms = 0;                  // from one stage to the next
  double compute(int64_t rows) const {
    return stage_ms + row_ms * static_cast<double>(std::max<int64_t>(1, rows) - 1);
  }
  double slowest() const { return std::max(stage_ms, wire(1)); }  // stage or link, of a pass with one row
  double row_cost() const { return std::max(row_ms, wire(1) - wire(0)) / slowest(); }
  double once_round() const { return kStages * (stage_ms + hop_ms + wire(1)); }
  static double wire(int64_t rows) { return (kPassBits + kRowBits * static_cast<double>(rows)) / kBitsPerMs; }
};

class RingLimits final : public ModelLimits {
 public:
  int64_t context() const override { return kContext; }
  int64_t vocabulary() const override { return kVocabulary; }
  int64_t rows_max() const override { return 64; }
  Bytes bytes_of(int64_t positions) const override { return {positions}; }
};

// A ring whose stages and links take time, and compute nothing: of all logits the token 0 is the likeliest.
class VirtualRing {
 public:
  VirtualRing(const RingTimes& times, const EngineOptions& options)
      : times_(times), engine_(limits_, options) {}

  // Milliseconds until all texts have ended.
  double serve(int streams, int64_t tokens) {
    for (int i = 0; i < streams; ++i) {
      const auto added = engine_.add(
          {.prompt = {1}, .tokens_max = tokens, .sampling = {.temperature = 0}},
          {.on_token = [](const Generated&) { return true; }, .on_end = [](Finish, const Status&) {}});
      WEFT_CHECK(added.has_value());
    }
    double now = 0;
    while (engine_.serving() + engine_.waiting() > 0) now = step(now);
    return now;
  }
  int64_t guessed = 0, accepted = 0;

 private:
  struct Pass {
    Engine::Begun begun;
    double back = 0;
  };
  // The entry does what has come round first, else begins a pass; or waits for the next.
  double step(double now) {
    if (!passes_.empty() && passes_.front().back <= now) {
      const Pass pass = std::move(passes_.front());
      passes_.pop_front();
      finish(pass);
      return now + times_.row_ms;
    }
    if (auto begun = engine_.begin()) {
      int64_t rows = 0;
      for (const auto& piece : begun->pieces) rows += piece.count;
      const double sent = now + times_.compute(rows) - times_.row_ms;
      passes_.push_back({std::move(*begun), round(sent, rows)});
      return sent;
    }
    return passes_.front().back;
  }
  // When a pass that the entry has computed comes round.
  double round(double at, int64_t rows) {
    for (int stage = 0; stage < kStages; ++stage) {
      link_free_[stage] = std::max(at, link_free_[stage]) + RingTimes::wire(rows);
      at = link_free_[stage] + times_.hop_ms;
      if (stage + 1 == kStages) break;
      stage_free_[stage] = std::max(at, stage_free_[stage]) + times_.compute(rows);
      at = stage_free_[stage];
    }
    return at;
  }
  void finish(const Pass& pass) {
    int64_t rows = 0;
    for (const auto& piece : pass.begun.pieces)
      if (engine_.wants(pass.begun.number, piece.sequence)) rows += piece.logits;
    std::vector<float> logits(static_cast<size_t>(rows * kVocabulary), 0);
    for (int64_t row = 0; row < rows; ++row) logits[static_cast<size_t>(row * kVocabulary)] = 1;
    const auto tick = engine_.finish(pass.begun.number, dag::make_tensor({rows, kVocabulary}, logits));
    WEFT_CHECK(tick.status.has_value());
    guessed += tick.guessed;
    accepted += tick.accepted;
  }

  RingTimes times_;
  RingLimits limits_;
  Engine engine_;
  std::deque<Pass> passes_;
  std::array<double, kStages> link_free_{}, stage_free_{};
};

struct RingRate {
  double tokens_a_second = 0;
  double accepted = 0;  // of all guesses
};

// `rows`: guesses in a pass, at most; 0: without a draft.
inline RingRate rate_of(const RingTimes& times, int streams, int64_t tokens, size_t passes, double acceptance,
                        int64_t rows) {
  EngineOptions options{.passes_max = passes, .row_cost = times.row_cost()};
  if (rows > 0) options.draft_rows = rows;
  if (rows > 0) options.draft = std::make_shared<CoinDraft>(acceptance, kVocabulary, 7);
  VirtualRing ring(times, options);
  const double ms = ring.serve(streams, tokens);
  RingRate rate{static_cast<double>(streams * tokens) * 1000 / ms};
  if (ring.guessed > 0)
    rate.accepted = static_cast<double>(ring.accepted) / static_cast<double>(ring.guessed);
  return rate;
}

// So many that one sequence alone can fill the ring, and one more.
inline size_t passes_of(const RingTimes& times) {
  return static_cast<size_t>(times.once_round() / times.slowest()) + 2;
}

}  // namespace weft::serve::testing
