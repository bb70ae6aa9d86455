// Tokens guessed ahead. The model computes what was guessed in one pass, or in several that are under way at
// once, and each token is then drawn as always: a guess that is drawn saves a pass, another one is dropped.
// So no text depends on guesses (speculative decoding; Leviathan et al., 2023).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "serve/decoder.h"
#include "serve/sampler.h"

namespace weft::serve {

// Whoever asks does not trust it: any tokens may come.
class Draft {
 public:
  virtual ~Draft() = default;
  // What may follow `tokens`, at most `count`; nothing where it has no guess.
  virtual std::vector<int64_t> propose(uint64_t sequence, std::span<const int64_t> tokens,
                                       const SamplingOptions& options, int64_t count) = 0;
  // Of the time of a pass with one row, what a guess takes to make.
  virtual double cost() const { return 0; }
  // Nothing more will be asked of it.
  virtual void end(uint64_t sequence) { static_cast<void>(sequence); }
};

// Repetition in the text: what followed when its last tokens, as many as possible, stood there before; of
// equally many the latest place counts. It keeps nothing, and looks at the last `window` tokens alone.
class NgramDraft final : public Draft {
 public:
  explicit NgramDraft(size_t suffix_max = 4, size_t window = 4096)
      : suffix_max_(suffix_max), window_(window) {}
  std::vector<int64_t> propose(uint64_t sequence, std::span<const int64_t> tokens,
                               const SamplingOptions& options, int64_t count) override;

 private:
  size_t suffix_max_, window_;
};

// A small model of the same tokens. It draws with the noise that the model will have at the same position, so
// that where both see the same probabilities they draw the same token. It keeps a cache for each sequence,
// and has no guess beyond its own context, or where its memory is full.
class DecoderDraft final : public Draft {
 public:
  DecoderDraft(std::unique_ptr<Decoder> decoder, double cost) : decoder_(std::move(decoder)), cost_(cost) {}
  std::vector<int64_t> propose(uint64_t sequence, std::span<const int64_t> tokens,
                               const SamplingOptions& options, int64_t count) override;
  double cost() const override { return cost_; }
  void end(uint64_t sequence) override { read_.erase(sequence); }
  size_t sequences() const { return read_.size(); }

 private:
  struct Read {
    std::unique_ptr<Sequence> sequence;
    std::vector<int64_t> tokens;  // that are in its cache
  };
  Result<dag::Tensor> read(Read& read, std::span<const int64_t> tokens);

  std::unique_ptr<Decoder> decoder_;
  double cost_;
  std::map<uint64_t, Read> read_;
};

// For measuring with devices that make no numbers (null:, whose logits are all alike): a guess is right with
// a given probability, by a coin that hangs on seeds and position.
class CoinDraft final : public Draft {
 public:
  // REQUIRES: vocabulary >= 2.
  CoinDraft(double right, int64_t vocabulary, uint64_t seed = 0)
      : right_(right), seed_(seed), logits_(static_cast<size_t>(vocabulary), 0.0F) {}
  std::vector<int64_t> propose(uint64_t sequence, std::span<const int64_t> tokens,
                               const SamplingOptions& options, int64_t count) override;

 private:
  double right_;
  uint64_t seed_;
  std::vector<float> logits_;
};

// How many tokens of one sequence are worth guessing, by how often guesses were right.
class DraftDepth {
 public:
  // Of guesses whose predecessors were right.
  void count(bool right);
  // A token was drawn that nobody had guessed.
  void count_none() { ++tokens_without_; }
  // How many of at most `most` are to follow `ahead` guesses that nobody has checked yet. `cost`: of a
  // guess, in parts of what a token costs without. Where guesses do not pay, one is tried once in several
  // tokens.
  int64_t next(int64_t ahead, int64_t most, double cost);
  double acceptance() const { return right_ / all_; }

 private:
  static constexpr double kForget = 1.0 / 16;
  static constexpr int64_t kTryEvery = 32;
  double right_ = 0.6, all_ = 2;  // as if two had been tried: little is lost where no guess is right
  int64_t tokens_without_ = 0;
};

}  // namespace weft::serve
