#include <algorithm>

#include "dag/lower.h"
#include "dag/op_table.h"
#include "dag/state.h"
#include "peer/executor.h"
#include "serve/decoder.h"

namespace weft::serve {
namespace {

using dag::DType;
using dag::Tensor;

class WindowSequence final : public Sequence {
 public:
  std::vector<int64_t> tokens;
  void set_length() { length_ = static_cast<int64_t>(tokens.size()); }
};

class WindowDecoder final : public Decoder {
 public:
  explicit WindowDecoder(std::shared_ptr<peer::State> state) : state_(std::move(state)) {}

  Status load(const dag::Graph& graph, const dag::Weights& weights, const std::string& tokens,
              const std::string& logits) {
    auto lowered =
        std::make_shared<const dag::Graph>(dag::lower(graph, dag::op_table(), state_->backend().traits()));
    for (const dag::ValueId input : lowered->inputs())
      if (lowered->value(input).name == tokens) tokens_ = input;
    for (const dag::GraphOutput& output : lowered->outputs())
      if (!logits_.valid() && output.role == dag::OutputRole::Prediction &&
          (logits.empty() || output.name == logits))
        logits_ = output.value;
    if (!tokens_.valid() || !logits_.valid())
      return fail(ErrorCode::NotFound,
                  "the model has no input '" + tokens + "' or no output '" + logits + "'");
    WEFT_TRY_STATUS(check_shapes(*lowered));
    std::vector<const dag::Initializer*> missing;
    for (const dag::Initializer& initializer : lowered->initializers())
      if (state_->find(dag::weight_key(initializer)) == nullptr) missing.push_back(&initializer);
    WEFT_TRY(executor_, peer::Executor::create(lowered, state_, {.rows_alone = true}));
    for (const dag::Initializer* one : missing) {
      const dag::Initializer& initializer = *one;
      const auto weight = weights.find(initializer.name);
      if (weight == weights.end())
        return fail(ErrorCode::NotFound, "the model has no weight '" + initializer.name + "'");
      WEFT_TRY_STATUS(state_->write(dag::weight_key(initializer), weight->second));
    }
    WEFT_TRY(microbatch_, executor_->make_microbatch());
    return {};
  }

  int64_t context() const override { return executor_->graph().spec(tokens_).shape.back(); }
  int64_t vocabulary() const override { return executor_->graph().spec(logits_).shape.back(); }
  int64_t rows_max() const override { return context(); }
  Bytes bytes_of(int64_t positions) const override {
    return {positions * static_cast<int64_t>(sizeof(int64_t))};
  }
  std::unique_ptr<Sequence> begin() override { return std::make_unique<WindowSequence>(); }
  void cut(Sequence& sequence, int64_t length) override {
    auto& window = static_cast<WindowSequence&>(sequence);
    WEFT_CHECK(length >= 0 && length <= window.length());
    window.tokens.resize(static_cast<size_t>(length));
    window.set_length();
  }

  Result<Tensor> pass(std::span<const Piece> pieces) override {
    int64_t wanted = 0;
    for (const Piece& piece : pieces) {
      WEFT_TRY_STATUS(check(piece));
      wanted += piece.logits;
    }
    Tensor logits({DType::F32, {wanted, vocabulary()}});
    int64_t row = 0;
    for (const Piece& piece : pieces) {
      if (piece.logits > 0) WEFT_TRY_STATUS(run(piece, logits, row));
      row += piece.logits;
    }
    for (const Piece& piece : pieces) {
      auto& sequence = static_cast<WindowSequence&>(*piece.sequence);
      sequence.tokens.insert(sequence.tokens.end(), piece.tokens.begin(), piece.tokens.end());
      sequence.set_length();
    }
    return logits;
  }

 private:
  Status check_shapes(const dag::Graph& graph) const {
    const dag::TensorSpec &tokens = graph.spec(tokens_), &logits = graph.spec(logits_);
    const int64_t length = tokens.shape.empty() ? 0 : tokens.shape.back();
    const bool fits = tokens.element_count() == length && logits.rank() >= 2 && logits.dtype == DType::F32 &&
                      logits.shape[logits.shape.size() - 2] == length &&
                      logits.element_count() == length * logits.shape.back() && graph.inputs().size() == 1;
    if (fits) return {};
    return fail(ErrorCode::Unsupported, "this is no language model: it makes " + to_string(logits) + " of " +
                                            to_string(tokens) +
                                            " (wanted: tokens [1,T] alone, and logits f32[1,T,V])");
  }

  Status run(const Piece& piece, Tensor& logits, int64_t row) {
    std::vector<int64_t> window = static_cast<WindowSequence&>(*piece.sequence).tokens;
    window.insert(window.end(), piece.tokens.begin(), piece.tokens.end());
    const auto length = static_cast<int64_t>(window.size());
    window.resize(static_cast<size_t>(context()));
    WEFT_TRY_STATUS(executor_->set_value(*microbatch_, tokens_,
                                         dag::from_int64s(executor_->graph().spec(tokens_), window)));
    WEFT_TRY_STATUS(executor_->run(*microbatch_));
    WEFT_TRY(const Tensor all, executor_->value(*microbatch_, logits_));
    const auto from = all.as<float>().subspan(static_cast<size_t>((length - piece.logits) * vocabulary()),
                                              static_cast<size_t>(piece.logits * vocabulary()));
    std::copy(from.begin(), from.end(), logits.mutable_as<float>().begin() + row * vocabulary());
    return {};
  }

  std::shared_ptr<peer::State> state_;
  std::unique_ptr<peer::Executor> executor_;
  std::unique_ptr<peer::MicrobatchMemory> microbatch_;
  dag::ValueId tokens_, logits_;
};

}  // namespace

Result<std::unique_ptr<Decoder>> make_window_decoder(const dag::Graph& graph, const dag::Weights& weights,
                                                     const std::string& tokens, const std::string& logits,
                                                     std::shared_ptr<peer::State> state) {
  auto decoder = std::make_unique<WindowDecoder>(std::move(state));
  WEFT_TRY_STATUS(decoder->load(graph, weights, tokens, logits));
  return decoder;
}

}  // namespace weft::serve
