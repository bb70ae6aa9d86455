// The entry of a ring without a ring: a real engine that answers the broker's messages, one pass at a time.
#pragma once

#include <map>
#include <vector>

#include "proto/messages.h"
#include "serve/engine.h"

namespace weft::test {

// Logits that hang on all tokens before, by a hash: draws differ with every token, position and seed.
class HashingDecoder final : public serve::Decoder {
 public:
  HashingDecoder(int64_t context, int64_t vocabulary) : context_(context), vocabulary_(vocabulary) {}
  int64_t context() const override { return context_; }
  int64_t vocabulary() const override { return vocabulary_; }
  int64_t rows_max() const override { return 16; }
  Bytes bytes_of(int64_t positions) const override { return {positions}; }
  std::unique_ptr<serve::Sequence> begin() override;
  void cut(serve::Sequence&, int64_t) override {}
  Result<dag::Tensor> pass(std::span<const serve::Piece> pieces) override;

 private:
  const int64_t context_, vocabulary_;
};

class FakeEntry {
 public:
  FakeEntry(int64_t context, int64_t vocabulary) : decoder_(context, vocabulary), engine_(decoder_, {}) {}

  void take(const proto::Message& message);
  // One pass. False: there is nothing to do.
  bool work() { return !engine_.tick().idle; }
  void give_up() { engine_.cancel_all(); }  // on all requests, by itself
  // What it has to say since.
  std::vector<proto::ServeProgress> told() { return std::exchange(told_, {}); }

  size_t requests = 0, cancelled = 0;  // messages
  std::vector<proto::ServeRequest> taken;

 private:
  struct Told {
    uint64_t engine_id = 0;
    size_t begin = 0;  // the position of the first that it drew
    std::vector<proto::ServedToken> drawn;
    std::optional<proto::ServeEnd> end;
    std::optional<Error> error;
  };
  void begin(const proto::ServeRequest& request);
  void tell_again(const proto::ServeRequest& request, const Told& told);
  proto::ServeProgress progress(uint64_t number, size_t first) const;

  HashingDecoder decoder_;
  serve::Engine engine_;
  std::map<uint64_t, Told> requests_;
  std::vector<proto::ServeProgress> told_;
  proto::JobNumber run_ = 0;  // as it was asked last
  proto::PlanVersion plan_version_ = 0;
};

}  // namespace weft::test
