#include "serve/ring.h"

#include <algorithm>
#include <utility>

#include "serve/cache.h"
#include "serve/spoilt_rows.h"

namespace weft::serve {
namespace {

using dag::DType;
using dag::Incremental;
using dag::RowSpec;
using dag::Tensor;

// Of rows_max and sequences_max: their pieces are together no more than a pass may have.
constexpr int64_t kCountMax = static_cast<int64_t>(kPassPiecesMax / 2);

tl::unexpected<Error> refuse_ring(std::string message) {
  return fail(ErrorCode::InvalidArgument, std::move(message));
}

Status check_options(const RingOptions& options) {
  const auto counts = [](int64_t count) { return count >= 1 && count <= kCountMax; };
  if (counts(options.rows_max) && counts(static_cast<int64_t>(options.sequences_max)) &&
      counts(static_cast<int64_t>(options.passes_max)) && options.positions_max >= 1 &&
      options.positions_max <= dag::kElementCountMax && options.prompt_rows >= 1 &&
      options.kept_positions_max >= 0)
    return {};
  return refuse_ring("a ring needs rows_max, sequences_max and passes_max from 1 to " +
                     std::to_string(kCountMax) +
                     ", a positions_max from 1 to 2^40 and at least one of prompt_rows");
}

std::vector<PassPiece> without_ends(std::span<const PassPiece> pieces) {
  std::vector<PassPiece> going_on;
  std::copy_if(pieces.begin(), pieces.end(), std::back_inserter(going_on),
               [](const PassPiece& piece) { return !piece.ends(); });
  return going_on;
}

// As a stage runs them that makes no logits.
std::vector<PassPiece> to_compute(std::span<const PassPiece> pieces) {
  std::vector<PassPiece> computed = without_ends(pieces);
  for (PassPiece& piece : computed) piece.logits = 0;
  return computed;
}

std::vector<Pass> history_before(uint64_t number, const RowHistory& sent, int64_t rows_max) {
  std::vector<Pass> passes = sent.passes(first_of(number) + 1, rows_max);
  if (passes.size() >= kHistoryNumbers) passes.resize(kHistoryNumbers - 1);
  return passes;
}

// Nothing travels where the entry is alone.
std::vector<RowSpec> edges_of(const Incremental& model, bool is_alone, uint32_t part) {
  return is_alone ? std::vector<RowSpec>{} : edges_before(model, part);
}

void let_go(Stage& stage, std::span<const PassPiece> pieces) {
  for (const PassPiece& piece : pieces)
    if (piece.ends()) stage.end(piece.sequence);
}

// Errors that what was asked of the model has brought about; any other is the stage's.
bool is_of_requests(ErrorCode code) {
  return code == ErrorCode::ResourceExhausted || code == ErrorCode::OutOfRange ||
         code == ErrorCode::InvalidArgument;
}

// Positions for bytes: what a sequence takes is a share of each stage's memory.
class RingLimits final : public ModelLimits {
 public:
  RingLimits(std::shared_ptr<const Incremental> model, int64_t rows_max)
      : model_(std::move(model)), rows_max_(rows_max) {}
  int64_t context() const override { return model_->context(); }
  int64_t vocabulary() const override { return model_->logits().width; }
  int64_t rows_max() const override { return rows_max_; }
  Bytes bytes_of(int64_t positions) const override { return {rounded_capacity(positions, context())}; }

 private:
  std::shared_ptr<const Incremental> model_;
  int64_t rows_max_;
};

// Some of the rows, by their first one and their count.
Tensor rows_at(const Tensor& all, std::span<const std::pair<int64_t, int64_t>> places) {
  int64_t rows = 0;
  for (const auto& [first, count] : places) rows += count;
  if (rows == all.shape()[0]) return all;
  const int64_t width = all.shape()[1];
  Tensor some({all.dtype(), {rows, width}});
  auto to = some.mutable_bytes().begin();
  for (const auto& [first, count] : places) {
    const Tensor part = all.elements(first * width, count * width);
    to = std::copy(part.bytes().begin(), part.bytes().end(), to);
  }
  return some;
}

}  // namespace

Result<std::unique_ptr<RingStage>> RingStage::create(std::shared_ptr<const Incremental> model,
                                                     PartRange range, std::unique_ptr<Stage> stage,
                                                     const RingOptions& options) {
  WEFT_TRY_STATUS(check_options(options));
  if (range.begin < 1 || range.begin >= range.end || range.end >= part_count(*model))
    return refuse_ring("parts " + std::to_string(range.begin) + " to " + std::to_string(range.end) + " of " +
                       std::to_string(part_count(*model)) + " are none of a stage between the entry's");
  return std::unique_ptr<RingStage>(new RingStage(std::move(model), range, std::move(stage), options));
}

RingStage::RingStage(std::shared_ptr<const Incremental> model, PartRange range, std::unique_ptr<Stage> stage,
                     const RingOptions& options)
    : model_(std::move(model)),
      stage_(std::move(stage)),
      options_(options),
      in_(edges_before(*model_, range.begin)),
      out_(edges_before(*model_, range.end)),
      sent_(out_) {}

PassLimits RingStage::limits() const { return {options_.rows_max, model_->context()}; }

int64_t RingStage::positions() const {
  int64_t positions = 0;
  for (const auto& [sequence, kept] : kept_) positions += kept.positions;
  return positions;
}

RingStage::Kept RingStage::after(const PassPiece& piece) const {
  const auto kept = kept_.find(piece.sequence);
  const int64_t length = piece.first + piece.count;
  const int64_t positions = rounded_capacity(std::max(length, piece.expected), model_->context());
  return {length, std::max(positions, kept == kept_.end() ? 0 : kept->second.positions)};
}

Status RingStage::check_form(const Pass& in) const {
  if (in.number <= last_)
    return refuse_ring("pass " + std::to_string(in.number) + " comes behind pass " + std::to_string(last_));
  WEFT_TRY_STATUS(check_pieces(in.pieces, limits()));
  return check_rows(in, in_);
}

Status RingStage::check_follows(const Pass& in) const {
  for (const PassPiece& piece : in.pieces) {
    const auto kept = kept_.find(piece.sequence);
    const int64_t length = kept == kept_.end() ? 0 : kept->second.length;
    if (piece.first > length)
      return refuse_ring("sequence " + std::to_string(piece.sequence) + ": position " +
                         std::to_string(piece.first) + " comes, and only " + std::to_string(length) +
                         " have been computed");
  }
  return check_room(in);
}

Status RingStage::check_room(const Pass& in) const {
  size_t sequences = kept_.size();
  int64_t taken = positions();
  for (const PassPiece& piece : in.pieces) {
    const auto kept = kept_.find(piece.sequence);
    const bool known = kept != kept_.end();
    if (known) taken -= kept->second.positions;
    if (known && piece.ends()) --sequences;
    if (!known && !piece.ends()) ++sequences;
    if (!piece.ends()) taken += after(piece).positions;
  }
  if (sequences <= options_.sequences_max && taken <= options_.positions_max) return {};
  return fail(ErrorCode::ResourceExhausted, std::to_string(sequences) + " sequences of " +
                                                std::to_string(taken) + " positions, where " +
                                                std::to_string(options_.sequences_max) + " of " +
                                                std::to_string(options_.positions_max) + " have room");
}

// Those of earlier entries, which nobody will end.
void RingStage::forget_before(uint64_t first) {
  const auto end = kept_.lower_bound(first);
  for (auto kept = kept_.begin(); kept != end; kept = kept_.erase(kept)) stage_->end(kept->first);
  sent_.forget_before(first);
}

void RingStage::resume(bool same_behind) {
  fills_ = is_whole_ && (!same_behind || passes_ <= options_.passes_max);
  passes_ = 0;
  if (!is_whole_) forget_before(UINT64_MAX);
}

std::vector<Pass> RingStage::history(const Pass& before) {
  if (!fills_ || before.pieces.empty() || is_history(before.pieces)) return {};
  fills_ = false;
  forget_before(first_of(before.pieces.front().sequence));
  return history_before(before.number, sent_, options_.rows_max);
}

Result<Pass> RingStage::run(const Pass& in) {
  WEFT_TRY_STATUS(check_form(in));
  const bool is_new = !is_history(in.pieces);
  if (!is_new && is_whole_) {
    last_ = in.number;
    return Pass{.number = in.number};
  }
  if (is_new) forget_before(first_of(in.pieces.front().sequence));
  WEFT_TRY_STATUS(check_follows(in));
  let_go(*stage_, in.pieces);
  Pass out{.number = in.number, .pieces = in.pieces};
  const std::vector<PassPiece> pieces = to_compute(in.pieces);
  if (!pieces.empty()) {
    WEFT_TRY(out.rows, stage_->run(0, pieces, in.rows));
  }
  for (const PassPiece& piece : in.pieces) {
    if (piece.ends())
      kept_.erase(piece.sequence);
    else
      kept_[piece.sequence] = after(piece);
  }
  sent_.keep(out);
  last_ = in.number;
  is_whole_ = is_whole_ || is_new;
  passes_ += is_new ? 1 : 0;
  return out;
}

Result<std::unique_ptr<RingEntry>> RingEntry::create(std::shared_ptr<const Incremental> model,
                                                     std::vector<PartRange> ranges,
                                                     std::unique_ptr<Stage> stage,
                                                     const RingOptions& options) {
  WEFT_TRY_STATUS(check_options(options));
  const uint32_t parts = part_count(*model);
  const bool has_sense = !ranges.empty() && ranges.size() <= 2 && ranges.front().begin == 0 &&
                         ranges.back().end == parts && ranges.front().end > 0 &&
                         ranges.back().begin < parts &&
                         (ranges.size() == 1 || ranges[0].end < ranges[1].begin);
  if (!has_sense)
    return refuse_ring("the entry has the first part and the last, and no other stage has them");
  return std::unique_ptr<RingEntry>(new RingEntry(std::move(model), ranges, std::move(stage), options));
}

RingEntry::RingEntry(std::shared_ptr<const Incremental> model, std::span<const PartRange> ranges,
                     std::unique_ptr<Stage> stage, const RingOptions& options)
    : model_(std::move(model)),
      stage_(std::move(stage)),
      limits_(std::make_unique<RingLimits>(model_, options.rows_max)),
      engine_(*limits_, {.cache_bytes = {options.positions_max},
                         .sequences_max = options.sequences_max,
                         .waiting_max = options.waiting_max,
                         .prompt_rows = options.prompt_rows,
                         .passes_max = options.passes_max,
                         .numbers_behind = options.numbers_behind,
                         .draft = options.draft,
                         .passes_shared = options.passes_shared,
                         .row_cost = options.row_cost}),
      alone_(ranges.size() == 1),
      kept_positions_max_(options.kept_positions_max),
      in_(edges_of(*model_, alone_, ranges.back().begin)),
      out_(edges_of(*model_, alone_, ranges.front().end)),
      sent_(out_) {}

Tensor RingEntry::no_logits() const { return Tensor({DType::F32, {0, limits_->vocabulary()}}); }

// A sequence is kept from its first position on, if at all.
void RingEntry::mark_kept(std::vector<PassPiece>& pieces) const {
  int64_t expected = sent_.expected();
  for (PassPiece& piece : pieces) {
    if (piece.ends()) continue;
    piece.kept = sent_.keeps(piece.sequence);
    if (piece.first > 0 || piece.kept || alone_) continue;
    piece.kept = piece.expected <= kept_positions_max_ - expected;
    if (piece.kept) expected += piece.expected;
  }
}

Result<RingEntry::Step> RingEntry::next() {
  Step step;
  auto begun = engine_.begin();
  step.tick.idle = !begun;
  if (!begun) return step;
  let_go(*stage_, begun->pieces);
  mark_kept(begun->pieces);
  Result<RowTensors> rows;
  const std::vector<PassPiece> pieces = without_ends(begun->pieces);
  if (!pieces.empty()) {
    const RowSpec spec = model_->tokens();
    const dag::TensorSpec form{spec.dtype, {static_cast<int64_t>(begun->tokens.size()), spec.width}};
    rows = stage_->run(0, pieces, {{spec.name, dag::from_int64s(form, begun->tokens)}});
  }
  if (!rows) {
    if (!is_of_requests(rows.error().code)) return fail(rows.error());
    step.tick = engine_.finish(begun->number, fail(rows.error()));
  } else if (alone_) {
    step.tick = engine_.finish(begun->number, rows->empty() ? no_logits() : rows->begin()->second);
  } else {
    if (std::exchange(fills_, false))
      step.history = history_before(begun->number, sent_, limits_->rows_max());
    step.send = Pass{.number = begun->number, .pieces = begun->pieces, .rows = std::move(*rows)};
    sent_.keep(*step.send);
    under_way_.emplace(begun->number, begun->pieces);
  }
  return step;
}

Status RingEntry::check(const Pass& pass) const {
  if (under_way_.empty() || under_way_.begin()->first != pass.number)
    return refuse_ring("pass " + std::to_string(pass.number) +
                       (under_way_.empty()
                            ? " comes, and none is under way"
                            : " comes, where pass " + std::to_string(under_way_.begin()->first) + " is due"));
  if (pass.pieces != under_way_.begin()->second)
    return refuse_ring("pass " + std::to_string(pass.number) + " has other pieces than were sent");
  return check_rows(pass, in_);
}

// Without what has ended since it was begun, or was guessed in vain.
Pass RingEntry::still_wanted(const Pass& pass) const {
  Pass kept{.number = pass.number};
  std::vector<std::pair<int64_t, int64_t>> places;  // first row, count
  int64_t row = 0;
  for (const PassPiece& piece : pass.pieces) {
    if (engine_.wants(pass.number, piece.sequence)) {
      kept.pieces.push_back(piece);
      places.emplace_back(row, piece.count);
    }
    row += piece.count;
  }
  for (const auto& [name, tensor] : pass.rows) kept.rows.emplace(name, rows_at(tensor, places));
  return kept;
}

Result<Engine::Tick> RingEntry::finish(const Pass& pass) {
  if (!pass.pieces.empty() && is_history(pass.pieces)) return Engine::Tick{};
  WEFT_TRY_STATUS(check(pass));
  for (const uint64_t sequence : spoilt_sequences(pass))
    if (engine_.wants(pass.number, sequence))
      engine_.give_up(sequence, fail(ErrorCode::Corrupted, "the model makes NaN or infinity of this text"));
  Result<Tensor> logits = no_logits();
  const Pass kept = still_wanted(pass);
  if (!kept.pieces.empty()) {
    auto rows = stage_->run(1, kept.pieces, kept.rows);
    if (!rows && !is_of_requests(rows.error().code)) return fail(rows.error());
    logits = rows ? Result<Tensor>(std::move(rows->begin()->second)) : fail(rows.error());
  }
  under_way_.erase(pass.number);
  came_round_ = true;
  return engine_.finish(pass.number, logits);
}

void RingEntry::restart() {
  under_way_.clear();
  sent_.forget_before(UINT64_MAX);
  fills_ = came_round_ = false;
  engine_.restart();
}

void RingEntry::resume(bool same_behind, uint64_t numbers_behind) {
  under_way_.clear();
  engine_.resume([this](uint64_t id) { return alone_ || sent_.keeps(id); }, numbers_behind);
  sent_.cut_all([this](uint64_t id) { return engine_.begun(id); });
  fills_ = !alone_ && (!same_behind || !came_round_);
  came_round_ = false;
}

}  // namespace weft::serve
