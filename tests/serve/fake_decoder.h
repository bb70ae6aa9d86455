// A decoder without a model, for tests of what drives one.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "serve/decoder.h"

namespace weft::test {

class FakeSequence final : public serve::Sequence {
 public:
  std::vector<int64_t> tokens;
  void append(std::span<const int64_t> more) {
    tokens.insert(tokens.end(), more.begin(), more.end());
    length_ = static_cast<int64_t>(tokens.size());
  }
};

// The token that follows is `next`'s answer, beyond doubt: greedy draws and draws at temperature 1 take it.
class FollowingDecoder : public serve::Decoder {
 public:
  using Next = std::function<int64_t(const std::vector<int64_t>& tokens)>;
  FollowingDecoder(int64_t context, int64_t vocabulary, Next next)
      : context_(context), vocabulary_(vocabulary), next_(std::move(next)) {}

  int64_t context() const override { return context_; }
  int64_t vocabulary() const override { return vocabulary_; }
  int64_t rows_max() const override { return 64; }
  Bytes bytes_of(int64_t positions) const override { return {positions}; }
  std::unique_ptr<serve::Sequence> begin() override { return std::make_unique<FakeSequence>(); }
  void cut(serve::Sequence&, int64_t) override {}
  Result<dag::Tensor> pass(std::span<const serve::Piece> pieces) override {
    std::vector<float> logits;
    for (const serve::Piece& piece : pieces) {
      auto& sequence = static_cast<FakeSequence&>(*piece.sequence);
      sequence.append(piece.tokens);
      if (piece.logits == 0) continue;
      const size_t row = logits.size();
      logits.resize(row + static_cast<size_t>(vocabulary_), -100.0f);
      logits[row + static_cast<size_t>(next_(sequence.tokens))] = 0;
    }
    return dag::make_tensor({static_cast<int64_t>(logits.size()) / vocabulary_, vocabulary_}, logits);
  }

 private:
  int64_t context_, vocabulary_;
  Next next_;
};

}  // namespace weft::test
