#include <algorithm>
#include <numeric>

#include "serve/decoder.h"
#include "serve/programs.h"

namespace weft::serve {
namespace {

using dag::CacheSpec;
using dag::DType;
using dag::Incremental;
using dag::Tensor;
using peer::View;

// Positions that there is room for, where so many are wanted: few sizes, for each has programs of its own.
int64_t rounded_capacity(int64_t positions, int64_t context) {
  const int64_t step = positions <= 256 ? 64 : positions <= 2048 ? 128 : 512;
  return std::min(context, (positions + step - 1) / step * step);
}

// Where each cache begins in the memory of a sequence.
class CacheLayout {
 public:
  explicit CacheLayout(const Incremental& model, peer::Backend& backend) : backend_(backend) {
    for (size_t part = 0; part < model.attending_parts(); ++part)
      for (const CacheSpec& cache : model.attending_part(part).caches) caches_.emplace(cache.name, cache);
  }
  const std::map<std::string, CacheSpec>& caches() const { return caches_; }
  // By name, in the order of caches(); then the size of all.
  std::vector<int64_t> offsets(int64_t capacity) const {
    std::vector<int64_t> offsets{0};
    for (const auto& [name, cache] : caches_)
      offsets.push_back(offsets.back() +
                        peer::align_up(backend_.storage_bytes(cache.with(capacity), dag::Layout::Plain).value,
                                       backend_.alignment()));
    return offsets;
  }
  Bytes bytes(int64_t capacity) const { return {offsets(capacity).back()}; }
  // Copies the first positions of every cache.
  Status move(const peer::Memory& from, int64_t old_capacity, peer::Memory& to, int64_t capacity,
              int64_t positions) const {
    const std::vector<int64_t> old_offsets = offsets(old_capacity), new_offsets = offsets(capacity);
    size_t i = 0;
    for (const auto& [name, cache] : caches_) {
      const auto split = cache.shape.begin() + static_cast<std::ptrdiff_t>(cache.axis);
      const int64_t outer = std::accumulate(cache.shape.begin(), split, int64_t{1}, std::multiplies<>());
      dag::TensorSpec slice{cache.dtype, {positions}};
      slice.shape.insert(slice.shape.end(), split, cache.shape.end());
      dag::TensorSpec one = slice;
      one.shape[0] = 1;
      const int64_t bytes = backend_.storage_bytes(one, dag::Layout::Plain).value;
      for (int64_t o = 0; o < outer; ++o)
        WEFT_TRY_STATUS(backend_.copy(
            {const_cast<peer::Memory*>(&from), old_offsets[i] + o * old_capacity * bytes},
            {&to, new_offsets[i] + o * capacity * bytes}, slice));
      ++i;
    }
    return {};
  }

 private:
  peer::Backend& backend_;
  std::map<std::string, CacheSpec> caches_;
};

class CachedSequence final : public Sequence {
 public:
  int64_t capacity() const { return capacity_; }
  View at(int64_t offset) const { return {memory_.get(), offset}; }
  void advance(int64_t positions) { length_ += positions; }
  void cut(int64_t length) { length_ = length; }

  // Room for so many positions. What is there stays, whatever comes of it.
  Status reserve(int64_t positions, const CacheLayout& layout, int64_t context, peer::Backend& backend) {
    if (positions <= capacity_) return {};
    const int64_t capacity = rounded_capacity(positions, context);
    const Bytes size = layout.bytes(capacity);
    WEFT_TRY(auto memory, backend.allocate(size));
    // Of what no position has written nothing may count, and NaN times zero would.
    const int64_t element = backend.storage_bytes({DType::U8, {1}}, dag::Layout::Plain).value;
    WEFT_TRY_STATUS(backend.fill_zero({memory.get(), 0}, {DType::U8, {size.value / element}}));
    if (length_ > 0) WEFT_TRY_STATUS(layout.move(*memory_, capacity_, *memory, capacity, length_));
    memory_ = std::move(memory);
    capacity_ = capacity;
    return {};
  }

 private:
  std::unique_ptr<peer::Memory> memory_;
  int64_t capacity_ = 0;
};

class CachedDecoder final : public Decoder {
 public:
  CachedDecoder(std::shared_ptr<const Incremental> model, std::shared_ptr<peer::State> state,
                const CachedOptions& options)
      : model_(std::move(model)),
        backend_(state->backend()),
        rows_max_(options.rows_max),
        programs_(model_, std::move(state)),
        layout_(*model_, backend_) {}

  Status load(const dag::Weights& weights) {
    WEFT_TRY_STATUS(programs_.load(weights));
    find_row_step();
    // A sequence's rows are rounded up, and so are those of the pass.
    const int64_t rows = 2 * Programs::rounded_rows(rows_max_ * row_step_);
    WEFT_TRY(exchange_, Exchange::create(*model_, rows, backend_));
    WEFT_TRY(selected_, Exchange::create(*model_, rows, backend_));
    const int64_t positions = 2 * rows * backend_.storage_bytes({DType::I64, {1}}, dag::Layout::Plain).value;
    WEFT_TRY(positions_, backend_.allocate({positions + rows_max_ * backend_.alignment()}));
    return {};
  }

  int64_t context() const override { return model_->context(); }
  int64_t vocabulary() const override { return model_->logits().width; }
  int64_t rows_max() const override { return rows_max_; }
  Bytes bytes_of(int64_t positions) const override {
    return layout_.bytes(rounded_capacity(positions, context()));
  }
  std::unique_ptr<Sequence> begin() override { return std::make_unique<CachedSequence>(); }
  void cut(Sequence& sequence, int64_t length) override {
    WEFT_CHECK(length >= 0 && length <= sequence.length());
    static_cast<CachedSequence&>(sequence).cut(length);
  }

  Result<Tensor> pass(std::span<const Piece> pieces) override {
    WEFT_TRY_STATUS(check(pieces));
    for (const Piece& piece : pieces)
      WEFT_TRY_STATUS(of(piece).reserve(piece.sequence->length() + count(piece), layout_, context(), backend_));
    const std::vector<int64_t> first = lay_rows(pieces);
    WEFT_TRY_STATUS(upload(pieces, first));
    const size_t last = model_->attending_parts();
    for (size_t part = 0; part < last; ++part) {
      WEFT_TRY_STATUS(run_rows(part));
      for (size_t i = 0; i < pieces.size(); ++i) WEFT_TRY_STATUS(attend(part, pieces[i], first[i], i));
    }
    WEFT_TRY(Tensor logits, run_last(pieces, first));
    for (const Piece& piece : pieces) of(piece).advance(count(piece));
    return logits;
  }

 private:
  static CachedSequence& of(const Piece& piece) { return static_cast<CachedSequence&>(*piece.sequence); }
  static int64_t count(const Piece& piece) { return static_cast<int64_t>(piece.tokens.size()); }

  Status check(std::span<const Piece> pieces) const {
    int64_t rows = 0;
    for (const Piece& piece : pieces) {
      rows += count(piece);
      for (const int64_t token : piece.tokens)
        if (token < 0 || token >= vocabulary())
          return fail(ErrorCode::OutOfRange, "token " + std::to_string(token) + " is none of " +
                                                 std::to_string(vocabulary()));
      if (piece.sequence->length() + count(piece) > context())
        return fail(ErrorCode::OutOfRange,
                    "a sequence of " + std::to_string(piece.sequence->length() + count(piece)) +
                        " positions is beyond the model's " + std::to_string(context()));
      WEFT_CHECK(count(piece) > 0 && piece.logits >= 0 && piece.logits <= count(piece));
    }
    if (rows > rows_max_)
      return fail(ErrorCode::OutOfRange, "a pass of " + std::to_string(rows) + " rows, at most are " +
                                             std::to_string(rows_max_));
    return {};
  }

  // Sequences begin at rows that a device can address.
  void find_row_step() {
    for (size_t part = 0; part < model_->attending_parts(); ++part)
      for (const auto* specs : {&model_->attending_part(part).inputs, &model_->attending_part(part).outputs})
        for (const dag::RowSpec& spec : *specs)
          while (row_step_ * Exchange::row_bytes(spec, backend_) % backend_.alignment() != 0) row_step_ *= 2;
  }
  std::vector<int64_t> lay_rows(std::span<const Piece> pieces) {
    std::vector<int64_t> first;
    int64_t row = 0;
    for (const Piece& piece : pieces) {
      first.push_back(row);
      row += (count(piece) + row_step_ - 1) / row_step_ * row_step_;
    }
    rows_ = Programs::rounded_rows(row);
    return first;
  }

  int64_t position_bytes() const {
    return backend_.storage_bytes({DType::I64, {1}}, dag::Layout::Plain).value;
  }
  Status upload_positions(const std::vector<int64_t>& positions, int64_t offset) {
    const auto rows = static_cast<int64_t>(positions.size());
    return backend_.upload(dag::make_tensor({rows}, positions), {positions_.get(), offset}, dag::Layout::Plain);
  }
  // Rows that belong to nobody have token 0 and position -1.
  Status upload(std::span<const Piece> pieces, const std::vector<int64_t>& first) {
    std::vector<int64_t> tokens(static_cast<size_t>(rows_));
    row_positions_.assign(static_cast<size_t>(rows_), -1);
    piece_positions_.clear();
    int64_t offset = peer::align_up(rows_ * position_bytes(), backend_.alignment());
    for (size_t i = 0; i < pieces.size(); ++i) {
      const Piece& piece = pieces[i];
      std::copy(piece.tokens.begin(), piece.tokens.end(), tokens.begin() + first[i]);
      std::vector<int64_t> own(static_cast<size_t>(Programs::rounded_rows(count(piece))), -1);
      std::iota(own.begin(), own.begin() + count(piece), piece.sequence->length());
      std::copy(own.begin(), own.begin() + count(piece), row_positions_.begin() + first[i]);
      WEFT_TRY_STATUS(upload_positions(own, offset));
      piece_positions_.push_back({positions_.get(), offset});
      offset += peer::align_up(static_cast<int64_t>(own.size()) * position_bytes(), backend_.alignment());
    }
    WEFT_TRY_STATUS(upload_positions(row_positions_, 0));
    const dag::RowSpec spec = model_->tokens();
    const Tensor rows = dag::from_int64s({spec.dtype, {rows_, 1}}, tokens);
    return backend_.upload(rows, exchange_.at(spec.name), dag::Layout::Plain);
  }

  void bind_rows(Program& program, const dag::PartInterface& interface, const Exchange& exchange, int64_t row) {
    for (const auto* specs : {&interface.inputs, &interface.outputs})
      for (const dag::RowSpec& spec : *specs) program.bind(spec.name, exchange.at(spec.name, row));
  }

  Status run_rows(size_t part) {
    WEFT_TRY(Program * program, programs_.rows(part, rows_));
    bind_rows(*program, model_->row_part(part), exchange_, 0);
    program->bind(Incremental::kPositions, {positions_.get(), 0});
    return program->run();
  }

  // Sequences go in the order of their rows: the rows beyond one's own are written over by the next.
  Status attend(size_t part, const Piece& piece, int64_t first, size_t index) {
    const CachedSequence& sequence = of(piece);
    WEFT_TRY(Program * program,
             programs_.attending(part, Programs::rounded_rows(count(piece)), sequence.capacity()));
    bind_rows(*program, model_->attending_part(part), exchange_, first);
    program->bind(Incremental::kPositions, piece_positions_[index]);
    const std::vector<int64_t> offsets = layout_.offsets(sequence.capacity());
    size_t i = 0;
    for (const auto& [name, cache] : layout_.caches()) program->bind(name, sequence.at(offsets[i++]));
    return program->run();
  }

  // The rows whose logits are wanted, brought together where they are not already.
  Result<Tensor> run_last(std::span<const Piece> pieces, const std::vector<int64_t>& first) {
    std::vector<int64_t> wanted;
    for (size_t i = 0; i < pieces.size(); ++i)
      for (int64_t k = count(pieces[i]) - pieces[i].logits; k < count(pieces[i]); ++k)
        wanted.push_back(first[i] + k);
    if (wanted.empty()) return Tensor({model_->logits().dtype, {0, vocabulary()}});
    const size_t part = model_->attending_parts();
    const dag::PartInterface& interface = model_->row_part(part);
    const bool in_place = wanted.back() + 1 == static_cast<int64_t>(wanted.size());
    const Exchange& exchange = in_place ? exchange_ : selected_;
    if (!in_place) WEFT_TRY_STATUS(select(wanted, interface));
    const int64_t rows = Programs::rounded_rows(static_cast<int64_t>(wanted.size()));
    WEFT_TRY(Program * program, programs_.rows(part, rows));
    bind_rows(*program, interface, exchange, 0);
    program->bind(Incremental::kPositions, {positions_.get(), 0});
    WEFT_TRY_STATUS(program->run());
    return backend_.download(exchange.at(model_->logits().name),
                             {model_->logits().dtype, {static_cast<int64_t>(wanted.size()), vocabulary()}},
                             dag::Layout::Plain);
  }
  Status select(const std::vector<int64_t>& wanted, const dag::PartInterface& interface) {
    std::vector<int64_t> positions(static_cast<size_t>(Programs::rounded_rows(static_cast<int64_t>(wanted.size()))),
                                   -1);
    for (size_t i = 0; i < wanted.size(); ++i) positions[i] = row_positions_[static_cast<size_t>(wanted[i])];
    WEFT_TRY_STATUS(upload_positions(positions, 0));
    for (size_t i = 0; i < wanted.size(); ++i)
      for (const dag::RowSpec& spec : interface.inputs)
        WEFT_TRY_STATUS(backend_.copy(exchange_.at(spec.name, wanted[i]),
                                      selected_.at(spec.name, static_cast<int64_t>(i)),
                                      {spec.dtype, {1, spec.width}}));
    return {};
  }

  std::shared_ptr<const Incremental> model_;
  peer::Backend& backend_;
  int64_t rows_max_;
  int64_t row_step_ = 1;
  Programs programs_;
  CacheLayout layout_;
  Exchange exchange_, selected_;
  std::unique_ptr<peer::Memory> positions_;
  // Of the pass under way.
  int64_t rows_ = 0;
  std::vector<int64_t> row_positions_;  // -1: of a row that belongs to nobody
  std::vector<View> piece_positions_;
};

}  // namespace

Result<std::unique_ptr<Decoder>> make_cached_decoder(std::shared_ptr<const Incremental> model,
                                                     const dag::Weights& weights,
                                                     std::shared_ptr<peer::State> state,
                                                     const CachedOptions& options) {
  auto decoder = std::make_unique<CachedDecoder>(std::move(model), std::move(state), options);
  WEFT_TRY_STATUS(decoder->load(weights));
  return decoder;
}

}  // namespace weft::serve
