#include "serve/stage.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>

#include "dag/finite.h"
#include "serve/cache.h"
#include "serve/programs.h"

namespace weft::serve {
namespace {

using dag::DType;
using dag::Incremental;
using dag::RowSpec;
using dag::Tensor;
using peer::View;

const dag::PartInterface& interface_of(const Incremental& model, uint32_t part) {
  return part % 2 == 0 ? model.row_part(part / 2) : model.attending_part(part / 2);
}

std::vector<dag::CacheSpec> caches_of(const Incremental& model, std::span<const PartRange> ranges) {
  std::vector<dag::CacheSpec> caches;
  for (const PartRange& range : ranges)
    for (uint32_t part = range.begin; part < range.end; ++part) {
      const auto& own = interface_of(model, part).caches;
      caches.insert(caches.end(), own.begin(), own.end());
    }
  return caches;
}

// Where the rows of a pass lie, and how they are taken apart.
struct Rows {
  std::vector<int64_t> first;  // by piece; there may be rows between two pieces
  int64_t used = 0;            // positions of all pieces
  int64_t rounded = 0;         // of the programs
  bool is_dense = true;        // no rows between two pieces
};

class PartsStage final : public Stage {
  static constexpr int64_t kSoon = 16;  // positions

 public:
  PartsStage(std::shared_ptr<const Incremental> model, std::vector<PartRange> ranges,
             std::shared_ptr<peer::State> state, int64_t rows_max)
      : model_(std::move(model)),
        ranges_(std::move(ranges)),
        backend_(state->backend()),
        rows_max_(rows_max),
        programs_(model_, std::move(state)),
        layout_(caches_of(*model_, ranges_), backend_) {}

  Status load(const dag::Weights& weights) {
    WEFT_TRY_STATUS(programs_.load(weights, ranges_));
    find_row_step();
    // A sequence's rows are rounded up, and so are those of the pass.
    rows_room_ = 2 * Programs::rounded_rows(rows_max_ * row_step_);
    WEFT_TRY(exchange_, Exchange::create(*model_, rows_room_, backend_));
    WEFT_TRY(selected_, Exchange::create(*model_, rows_room_, backend_));
    const int64_t bytes = 3 * rows_room_ * position_bytes() + (rows_max_ + 2) * backend_.alignment();
    WEFT_TRY(positions_, backend_.allocate({bytes}));
    return {};
  }

  Bytes bytes_of(int64_t positions) const override {
    return layout_.bytes(rounded_capacity(positions, model_->context()));
  }
  size_t sequences() const override { return sequences_.size(); }
  void end(uint64_t sequence) override { sequences_.erase(sequence); }

  // With the programs for it.
  bool make_room(uint64_t sequence, int64_t positions, int64_t expected, int64_t rows) override {
    Kept& kept = sequences_[sequence];
    const bool is_there = kept.cache.capacity() >= positions;
    if (!is_there && kept.cache.reserve(positions, expected, kept.longest(), layout_, model_->context())) {
      for (const PartRange& range : ranges_)
        for (uint32_t part = range.begin; part < range.end; ++part)
          if (part % 2 == 1)
            static_cast<void>(
                programs_.attending(part / 2, Programs::rounded_rows(rows), kept.cache.capacity()));
      return true;
    }
    if (kept.length.empty() && !is_there) sequences_.erase(sequence);
    return false;
  }

  Result<RowTensors> run(size_t range, std::span<const PassPiece> pieces, const RowTensors& rows) override {
    WEFT_TRY_STATUS(check(range, pieces, rows));
    WEFT_TRY_STATUS(reserve(pieces));
    WEFT_TRY_STATUS(clear_spoilt(pieces));
    const Rows places = lay(pieces);
    WEFT_TRY_STATUS(upload_positions(pieces, places));
    for (const auto& [name, tensor] : rows) WEFT_TRY_STATUS(receive(name, tensor, pieces, places));
    const auto [begin, end] = ranges_[range];
    for (uint32_t part = begin; part < end; ++part) {
      if (part + 1 == part_count(*model_)) break;
      WEFT_TRY_STATUS(part % 2 == 0 ? run_rows(part / 2, places) : attend_all(part / 2, pieces, places));
    }
    RowTensors out;
    if (end == part_count(*model_)) {
      WEFT_TRY(out[model_->logits().name], run_last(pieces, places));
    } else {
      for (const RowSpec& spec : rows_before(*model_, end)) {
        WEFT_TRY(out[spec.name], send(spec, pieces, places));
      }
    }
    note_spoilt(pieces, out, end == part_count(*model_));
    for (const PassPiece& piece : pieces) {
      Kept& kept = sequences_[piece.sequence];
      kept.length[range] = piece.first + piece.count;
      WEFT_TRY_STATUS(kept.cache.prepare(layout_, model_->context()));
    }
    grow_some(pieces);
    return out;
  }

 private:
  struct Kept {
    Cache cache;
    std::map<size_t, int64_t> length;      // by range
    std::optional<int64_t> spoilt_from{};  // a position from which on some are not finite
    int64_t longest() const {
      int64_t most = 0;
      for (const auto& [range, positions] : length) most = std::max(most, positions);
      return most;
    }
  };

  Status check(size_t range, std::span<const PassPiece> pieces, const RowTensors& rows) const {
    int64_t count = 0;
    std::set<uint64_t> seen;
    for (const PassPiece& piece : pieces) {
      const std::string name = "sequence " + std::to_string(piece.sequence);
      const auto kept = sequences_.find(piece.sequence);
      const bool knows = kept != sequences_.end() && kept->second.length.contains(range);
      const int64_t length = knows ? kept->second.length.at(range) : 0;
      if (piece.count < 1 || piece.first < 0 || piece.logits < 0 || piece.logits > piece.count)
        return fail(ErrorCode::InvalidArgument, name + ": a piece of no sense");
      if (!seen.insert(piece.sequence).second)
        return fail(ErrorCode::InvalidArgument, name + " is twice in a pass");
      if (piece.first > length)
        return fail(ErrorCode::InvalidArgument, name + ": position " + std::to_string(piece.first) +
                                                    " comes, and only " + std::to_string(length) +
                                                    " have been computed");
      if (piece.first > model_->context() - piece.count)
        return fail(ErrorCode::OutOfRange, name + ": " + std::to_string(piece.count) + " positions from " +
                                               std::to_string(piece.first) + " on go beyond the context of " +
                                               std::to_string(model_->context()));
      count += piece.count;
      if (count > rows_max_)
        return fail(ErrorCode::OutOfRange, "a pass of more than " + std::to_string(rows_max_) + " rows");
    }
    const std::vector<RowSpec> wanted = rows_before(*model_, ranges_[range].begin);
    if (rows.size() > wanted.size()) return fail(ErrorCode::InvalidArgument, "rows come that nobody wants");
    for (const RowSpec& spec : wanted) {
      const auto tensor = rows.find(spec.name);
      if (tensor == rows.end() || tensor->second.spec() != dag::TensorSpec{spec.dtype, {count, spec.width}})
        return fail(ErrorCode::InvalidArgument,
                    "the rows of '" + spec.name + "' are missing, or of another form");
    }
    return {};
  }

  Status reserve(std::span<const PassPiece> pieces) {
    for (const PassPiece& piece : pieces) {
      Kept& kept = sequences_[piece.sequence];
      Status reserved = kept.cache.reserve(piece.first + piece.count, piece.expected, kept.longest(), layout_,
                                           model_->context());
      if (reserved) continue;
      std::erase_if(sequences_, [](const auto& one) { return one.second.length.empty(); });
      return reserved;
    }
    return {};
  }

  // Of a sequence that begins anew before such rows, as where a token was guessed in vain: behind what is
  // computed attention multiplies by zero, and zero times NaN would count.
  Status clear_spoilt(std::span<const PassPiece> pieces) {
    for (const PassPiece& piece : pieces) {
      Kept& kept = sequences_[piece.sequence];
      if (!kept.spoilt_from || piece.first > *kept.spoilt_from) continue;
      WEFT_TRY_STATUS(kept.cache.clear_behind(piece.first, layout_));
      kept.spoilt_from.reset();
    }
    return {};
  }
  // What comes out of a row that is not finite is not, either. Of logits there are those of a piece's last
  // rows; whatever was spoilt before is read by them.
  void note_spoilt(std::span<const PassPiece> pieces, const RowTensors& out, bool are_logits) {
    int64_t row = 0;
    for (const PassPiece& piece : pieces) {
      const int64_t count = are_logits ? piece.logits : piece.count;
      const bool is_spoilt = std::any_of(out.begin(), out.end(), [&](const auto& named) {
        const int64_t width = named.second.shape()[1];
        return !dag::is_below_infinity(named.second.elements(row * width, count * width));
      });
      row += count;
      if (!is_spoilt) continue;
      std::optional<int64_t>& from = sequences_[piece.sequence].spoilt_from;
      from = std::min(from.value_or(piece.first), piece.first);
    }
  }

  // Caches that are soon full grow a few a pass, so that those of many sequences do not all grow in one.
  // Where there is no memory for it now there may be when it is needed.
  void grow_some(std::span<const PassPiece> pieces) {
    std::vector<std::pair<int64_t, const PassPiece*>> soon;  // by positions that are left
    for (const PassPiece& piece : pieces) {
      if (piece.logits == 0) continue;  // of a prompt, whose next piece needs more room at once
      const Kept& kept = sequences_.at(piece.sequence);
      const int64_t left = kept.cache.capacity() - kept.longest();
      if (left <= kSoon && kept.cache.capacity() < piece.expected) soon.emplace_back(left, &piece);
    }
    std::sort(soon.begin(), soon.end());
    for (size_t i = 0; i < (soon.size() + kSoon - 1) / kSoon; ++i) {
      Kept& kept = sequences_.at(soon[i].second->sequence);
      static_cast<void>(kept.cache.reserve(kept.cache.capacity() + 1, soon[i].second->expected,
                                           kept.longest(), layout_, model_->context()));
    }
  }

  // Sequences begin at rows that a device can address.
  void find_row_step() {
    for (const PartRange& range : ranges_)
      for (uint32_t part = range.begin; part < range.end; ++part) {
        if (part % 2 == 0) continue;
        for (const auto* specs : {&interface_of(*model_, part).inputs, &interface_of(*model_, part).outputs})
          for (const RowSpec& spec : *specs)
            while (row_step_ * Exchange::row_bytes(spec, backend_) % backend_.alignment() != 0)
              row_step_ *= 2;
      }
  }
  Rows lay(std::span<const PassPiece> pieces) const {
    Rows rows;
    int64_t at = 0;
    for (const PassPiece& piece : pieces) {
      rows.is_dense = rows.is_dense && at == rows.used;
      rows.first.push_back(at);
      rows.used += piece.count;
      at += (piece.count + row_step_ - 1) / row_step_ * row_step_;
    }
    rows.rounded = Programs::rounded_rows(std::max<int64_t>(1, at));
    return rows;
  }

  int64_t position_bytes() const {
    return backend_.storage_bytes({DType::I64, {1}}, dag::Layout::Plain).value;
  }
  // Behind what is there already.
  Result<View> upload_some(const std::vector<int64_t>& positions) {
    const auto count = static_cast<int64_t>(positions.size());
    const View view{positions_.get(), positions_used_};
    WEFT_TRY_STATUS(backend_.upload(dag::make_tensor({count}, positions), view, dag::Layout::Plain));
    positions_used_ = peer::align_up(positions_used_ + count * position_bytes(), backend_.alignment());
    return view;
  }
  // Rows that belong to nobody have position -1.
  Status upload_positions(std::span<const PassPiece> pieces, const Rows& places) {
    positions_used_ = 0;
    piece_positions_.clear();
    std::vector<int64_t> all(static_cast<size_t>(places.rounded), -1), wanted;
    for (size_t i = 0; i < pieces.size(); ++i) {
      const PassPiece& piece = pieces[i];
      std::vector<int64_t> own(static_cast<size_t>(Programs::rounded_rows(piece.count)), -1);
      std::iota(own.begin(), own.begin() + piece.count, piece.first);
      std::copy(own.begin(), own.begin() + piece.count, all.begin() + places.first[i]);
      wanted.insert(wanted.end(), own.begin() + (piece.count - piece.logits), own.begin() + piece.count);
      WEFT_TRY(const View view, upload_some(own));
      piece_positions_.push_back(view);
    }
    WEFT_TRY(row_positions_, upload_some(all));
    wanted.resize(static_cast<size_t>(
                      Programs::rounded_rows(std::max<int64_t>(1, static_cast<int64_t>(wanted.size())))),
                  -1);
    WEFT_TRY(wanted_positions_, upload_some(wanted));
    return {};
  }

  Status receive(const std::string& name, const Tensor& tensor, std::span<const PassPiece> pieces,
                 const Rows& places) {
    if (places.is_dense) return backend_.upload(tensor, exchange_.at(name), dag::Layout::Plain);
    int64_t row = 0;
    const int64_t width = tensor.shape()[1];
    for (size_t i = 0; i < pieces.size(); ++i) {
      const Tensor part = tensor.elements(row * width, pieces[i].count * width);
      WEFT_TRY_STATUS(backend_.upload(part, exchange_.at(name, places.first[i]), dag::Layout::Plain));
      row += pieces[i].count;
    }
    return {};
  }
  Result<Tensor> send(const RowSpec& spec, std::span<const PassPiece> pieces, const Rows& places) {
    if (places.is_dense)
      return backend_.download(exchange_.at(spec.name), {spec.dtype, {places.used, spec.width}},
                               dag::Layout::Plain);
    Tensor all({spec.dtype, {places.used, spec.width}});
    auto to = all.mutable_bytes().begin();
    for (size_t i = 0; i < pieces.size(); ++i) {
      WEFT_TRY(const Tensor part,
               backend_.download(exchange_.at(spec.name, places.first[i]),
                                 {spec.dtype, {pieces[i].count, spec.width}}, dag::Layout::Plain));
      to = std::copy(part.bytes().begin(), part.bytes().end(), to);
    }
    return all;
  }

  void bind_rows(Program& program, const dag::PartInterface& interface, const Exchange& exchange,
                 int64_t row) {
    for (const auto* specs : {&interface.inputs, &interface.outputs})
      for (const RowSpec& spec : *specs) program.bind(spec.name, exchange.at(spec.name, row));
  }

  Status run_rows(size_t part, const Rows& places) {
    WEFT_TRY(Program * program, programs_.rows(part, places.rounded));
    bind_rows(*program, model_->row_part(part), exchange_, 0);
    program->bind(Incremental::kPositions, row_positions_);
    return program->run();
  }

  // In the order of their rows: what a program writes beyond its own rows is written over by the next.
  Status attend_all(size_t part, std::span<const PassPiece> pieces, const Rows& places) {
    for (size_t i = 0; i < pieces.size(); ++i) {
      const Cache& cache = sequences_[pieces[i].sequence].cache;
      WEFT_TRY(Program * program,
               programs_.attending(part, Programs::rounded_rows(pieces[i].count), cache.capacity()));
      bind_rows(*program, model_->attending_part(part), exchange_, places.first[i]);
      program->bind(Incremental::kPositions, piece_positions_[i]);
      const std::vector<int64_t> offsets = layout_.offsets(cache.capacity());
      size_t k = 0;
      for (const auto& [name, spec] : layout_.caches()) program->bind(name, cache.at(offsets[k++]));
      WEFT_TRY_STATUS(program->run());
    }
    return {};
  }

  // The rows whose logits are wanted, brought together where they are not already.
  Result<Tensor> run_last(std::span<const PassPiece> pieces, const Rows& places) {
    std::vector<int64_t> wanted;
    for (size_t i = 0; i < pieces.size(); ++i)
      for (int64_t k = pieces[i].count - pieces[i].logits; k < pieces[i].count; ++k)
        wanted.push_back(places.first[i] + k);
    const RowSpec logits = model_->logits();
    const auto count = static_cast<int64_t>(wanted.size());
    if (wanted.empty()) return Tensor({logits.dtype, {0, logits.width}});
    const size_t part = model_->attending_parts();
    const dag::PartInterface& interface = model_->row_part(part);
    const bool in_place = wanted.back() + 1 == count;
    const Exchange& exchange = in_place ? exchange_ : selected_;
    for (size_t i = 0; !in_place && i < wanted.size(); ++i)
      for (const RowSpec& spec : interface.inputs)
        WEFT_TRY_STATUS(backend_.copy(exchange_.at(spec.name, wanted[i]),
                                      selected_.at(spec.name, static_cast<int64_t>(i)),
                                      {spec.dtype, {1, spec.width}}));
    WEFT_TRY(Program * program, programs_.rows(part, Programs::rounded_rows(count)));
    bind_rows(*program, interface, exchange, 0);
    program->bind(Incremental::kPositions, wanted_positions_);
    WEFT_TRY_STATUS(program->run());
    return backend_.download(exchange.at(logits.name), {logits.dtype, {count, logits.width}},
                             dag::Layout::Plain);
  }

  std::shared_ptr<const Incremental> model_;
  std::vector<PartRange> ranges_;
  peer::Backend& backend_;
  int64_t rows_max_;
  int64_t row_step_ = 1, rows_room_ = 0;
  Programs programs_;
  CacheLayout layout_;
  Exchange exchange_, selected_;
  std::map<uint64_t, Kept> sequences_;
  std::unique_ptr<peer::Memory> positions_;
  // Of the pass under way.
  int64_t positions_used_ = 0;
  std::vector<View> piece_positions_;
  View row_positions_, wanted_positions_;
};

}  // namespace

uint32_t part_count(const Incremental& model) { return static_cast<uint32_t>(2 * model.row_parts() - 1); }

std::vector<RowSpec> rows_before(const Incremental& model, uint32_t part) {
  std::map<std::string, RowSpec> made, wanted;
  made.emplace(model.tokens().name, model.tokens());
  for (uint32_t before = 0; before < part; ++before)
    for (const RowSpec& spec : interface_of(model, before).outputs) made.emplace(spec.name, spec);
  for (uint32_t after = part; after < part_count(model); ++after)
    for (const RowSpec& spec : interface_of(model, after).inputs)
      if (made.contains(spec.name)) wanted.emplace(spec.name, spec);
  std::vector<RowSpec> specs;
  specs.reserve(wanted.size());
  for (const auto& [name, spec] : wanted) specs.push_back(spec);
  return specs;
}

Result<std::unique_ptr<Stage>> Stage::create(std::shared_ptr<const Incremental> model,
                                             std::vector<PartRange> ranges, const dag::Weights& weights,
                                             std::shared_ptr<peer::State> state, int64_t rows_max) {
  auto stage = std::make_unique<PartsStage>(std::move(model), std::move(ranges), std::move(state), rows_max);
  WEFT_TRY_STATUS(stage->load(weights));
  return stage;
}

}  // namespace weft::serve
