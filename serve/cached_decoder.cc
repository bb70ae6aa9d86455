// A decoder of all parts on one machine.
#include "serve/decoder.h"
#include "serve/stage.h"

namespace weft::serve {
namespace {

using dag::Incremental;
using dag::Tensor;

class CachedSequence final : public Sequence {
 public:
  CachedSequence(std::weak_ptr<Stage> stage, uint64_t id) : stage_(std::move(stage)), id_(id) {}
  ~CachedSequence() override {
    if (const auto stage = stage_.lock()) stage->end(id_);
  }
  CachedSequence(const CachedSequence&) = delete;
  CachedSequence& operator=(const CachedSequence&) = delete;
  uint64_t id() const { return id_; }
  void set_length(int64_t length) { length_ = length; }

 private:
  std::weak_ptr<Stage> stage_;
  uint64_t id_;
};

class CachedDecoder final : public Decoder {
 public:
  CachedDecoder(std::shared_ptr<const Incremental> model, std::shared_ptr<Stage> stage, int64_t rows_max)
      : model_(std::move(model)), stage_(std::move(stage)), rows_max_(rows_max) {}

  int64_t context() const override { return model_->context(); }
  int64_t vocabulary() const override { return model_->logits().width; }
  int64_t rows_max() const override { return rows_max_; }
  Bytes bytes_of(int64_t positions) const override { return stage_->bytes_of(positions); }
  std::unique_ptr<Sequence> begin() override { return std::make_unique<CachedSequence>(stage_, ++last_id_); }
  void cut(Sequence& sequence, int64_t length) override {
    WEFT_CHECK(length >= 0 && length <= sequence.length());
    static_cast<CachedSequence&>(sequence).set_length(length);
  }

  bool make_room(Sequence& sequence, int64_t positions, int64_t expected, int64_t rows) override {
    return stage_->make_room(static_cast<CachedSequence&>(sequence).id(), positions, expected, rows);
  }

  Result<Tensor> pass(std::span<const Piece> pieces) override {
    std::vector<PassPiece> of_stage;
    std::vector<int64_t> tokens;
    for (const Piece& piece : pieces) {
      const auto count = static_cast<int64_t>(piece.tokens.size());
      WEFT_CHECK(count > 0 && piece.logits >= 0 && piece.logits <= count);
      WEFT_TRY_STATUS(check(piece));
      of_stage.push_back({of(piece).id(), piece.sequence->length(), count, piece.logits, piece.expected});
      tokens.insert(tokens.end(), piece.tokens.begin(), piece.tokens.end());
    }
    const dag::RowSpec spec = model_->tokens();
    const auto rows = static_cast<int64_t>(tokens.size());
    WEFT_TRY(
        RowTensors out,
        stage_->run(0, of_stage, {{spec.name, dag::from_int64s({spec.dtype, {rows, spec.width}}, tokens)}}));
    for (const Piece& piece : pieces)
      of(piece).set_length(piece.sequence->length() + static_cast<int64_t>(piece.tokens.size()));
    return std::move(out.begin()->second);
  }

 private:
  static CachedSequence& of(const Piece& piece) { return static_cast<CachedSequence&>(*piece.sequence); }

  std::shared_ptr<const Incremental> model_;
  std::shared_ptr<Stage> stage_;
  int64_t rows_max_;
  uint64_t last_id_ = 0;
};

}  // namespace

Result<std::unique_ptr<Decoder>> make_cached_decoder(std::shared_ptr<const Incremental> model,
                                                     const dag::Weights& weights,
                                                     std::shared_ptr<peer::State> state,
                                                     const CachedOptions& options) {
  WEFT_TRY(auto stage,
           Stage::create(model, {{0, part_count(*model)}}, weights, std::move(state), options.rows_max));
  return std::make_unique<CachedDecoder>(std::move(model), std::move(stage), options.rows_max);
}

}  // namespace weft::serve
