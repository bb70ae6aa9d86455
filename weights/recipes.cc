#include "weights/recipes.h"

#include <algorithm>
#include <optional>
#include <span>
#include <vector>

namespace weft::weights {
namespace {

// The bytes that a recipe takes of those that pass by.
class Taken {
 public:
  explicit Taken(const dag::Recipe& recipe)
      : cut_(recipe.cut.value_or(dag::Recipe::Cut{.size = recipe.source_size})), end_(piece_end()) {}

  bool is_complete() const { return piece_ == cut_.count; }

  Status pass(std::span<const std::byte> bytes, const data::ByteSink& sink) {
    while (!bytes.empty() && !is_complete()) {
      const uint64_t begin = end_ - cut_.size;
      if (at_ < begin) {
        const uint64_t skipped = std::min<uint64_t>(begin - at_, bytes.size());
        bytes = bytes.subspan(static_cast<size_t>(skipped));
        at_ += skipped;
        continue;
      }
      const auto part = bytes.first(static_cast<size_t>(std::min<uint64_t>(end_ - at_, bytes.size())));
      WEFT_TRY_STATUS(sink(part));
      bytes = bytes.subspan(part.size());
      at_ += part.size();
      if (at_ < end_) continue;
      ++piece_;
      end_ = piece_end();
    }
    return {};
  }

 private:
  uint64_t piece_end() const { return cut_.first + piece_ * cut_.stride + cut_.size; }

  const dag::Recipe::Cut cut_;
  uint64_t at_ = 0, piece_ = 0;
  uint64_t end_;  // of the piece that is taken or comes next
};

// Numbers as they come, to what whole blocks of them become.
class Rounded {
 public:
  explicit Rounded(const dag::Rounding& how) : how_(how), numbers_(static_cast<size_t>(at_once(how))) {}

  // REQUIRES: whole blocks pass in the end.
  Status pass(std::span<const std::byte> bytes, const data::ByteSink& sink) {
    while (!bytes.empty()) {
      const auto room = std::as_writable_bytes(std::span(numbers_)).subspan(filled_);
      const auto part = bytes.first(std::min(bytes.size(), room.size()));
      std::copy(part.begin(), part.end(), room.begin());
      bytes = bytes.subspan(part.size());
      filled_ += part.size();
      if (part.size() == room.size()) WEFT_TRY_STATUS(flush(sink));
    }
    return {};
  }
  Status flush(const data::ByteSink& sink) {
    const auto numbers = std::span<const float>(numbers_).first(filled_ / sizeof(float));
    filled_ = 0;
    made_.resize(static_cast<size_t>(dag::rounded_bytes(how_, numbers.size()).value()));
    dag::round_numbers(how_, numbers, made_);
    return made_.empty() ? Status{} : sink(made_);
  }

 private:
  static int64_t at_once(const dag::Rounding& how) {
    const bool has_blocks = how.part != dag::Rounding::Part::Halves;
    return has_blocks ? dag::kRoundedBlockMax / how.block * how.block : dag::kRoundedBlockMax;
  }

  const dag::Rounding how_;
  std::vector<float> numbers_;  // a number of whole blocks
  size_t filled_ = 0;           // bytes
  std::vector<std::byte> made_;
};

}  // namespace

Status follow(const dag::Recipe& recipe, const ReadSource& source, const data::ByteSink& sink) {
  WEFT_TRY_STATUS(dag::bytes_of(recipe));
  Taken taken(recipe);
  std::optional<Rounded> rounded;
  if (recipe.rounding) rounded.emplace(*recipe.rounding);
  const data::ByteSink take = [&](std::span<const std::byte> part) {
    return rounded ? rounded->pass(part, sink) : sink(part);
  };
  Status read = source([&](std::span<const std::byte> bytes) -> Status {
    WEFT_TRY_STATUS(taken.pass(bytes, take));
    if (!taken.is_complete()) return {};
    return fail(ErrorCode::Cancelled, "the rest of the source is not wanted");
  });
  if (!read && !(read.error().code == ErrorCode::Cancelled && taken.is_complete())) return read;
  if (!taken.is_complete())
    return fail(ErrorCode::Corrupted, "a tensor that a recipe takes bytes of has fewer than it says");
  return rounded ? rounded->flush(sink) : Status{};
}

}  // namespace weft::weights
