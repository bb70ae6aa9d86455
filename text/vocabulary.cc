#include "text/vocabulary.h"

#include <algorithm>
#include <cstring>

#include "base/printable.h"
#include "text/hash.h"

namespace weft::text {
namespace {

static_assert(kTokensMax * kTokenSizeMax <= UINT32_MAX);  // where one begins

std::string quoted(std::string_view bytes) {
  return "'" + printable(bytes.substr(0, 64)) + (bytes.size() > 64 ? "...'" : "'");
}

}  // namespace

Status Vocabulary::add(std::string_view bytes, TokenId id) {
  if (find(bytes)) return fail(ErrorCode::Corrupted, "the token " + quoted(bytes) + " is there twice");
  WEFT_TRY_STATUS(keep(bytes, id));
  if (2 * (placed_ + 1) > slots_.size()) WEFT_TRY_STATUS(grow());
  ++placed_;
  return place({static_cast<uint32_t>(hash_of(bytes)), id, spans_[id]});
}

Status Vocabulary::add_unreachable(std::string_view bytes, TokenId id) { return keep(bytes, id); }

Status Vocabulary::keep(std::string_view bytes, TokenId id) {
  if (count_ >= kTokensMax)
    return fail(ErrorCode::OutOfRange, "has more than " + std::to_string(kTokensMax) + " tokens");
  if (bytes.size() > kTokenSizeMax)
    return fail(ErrorCode::OutOfRange,
                "the token " + quoted(bytes) + " has more than " + std::to_string(kTokenSizeMax) + " bytes");
  if (contains(id))
    return fail(ErrorCode::Corrupted, "the id " + std::to_string(id) + " belongs to " + quoted(text(id)) +
                                          " and to " + quoted(bytes));
  if (id >= id_limit_)
    return fail(ErrorCode::OutOfRange, "the id " + std::to_string(id) + " of " + quoted(bytes) +
                                           " is too high for the number of tokens");
  if (id >= spans_.size()) spans_.resize(size_t{id} + 1);
  spans_[id] = {static_cast<uint32_t>(bytes_.size()), static_cast<uint32_t>(bytes.size())};
  bytes_ += bytes;
  ++count_;
  return {};
}

Status Vocabulary::place(const Slot& placed) {
  const size_t mask = slots_.size() - 1;
  for (size_t probe = 0; probe < kProbesMax; ++probe) {
    Slot& slot = slots_[(placed.hash + probe) & mask];
    if (slot.id != kNone) continue;
    slot = placed;
    return {};
  }
  return fail(ErrorCode::Corrupted, "too many of its tokens have one hash");
}

Status Vocabulary::grow() {
  std::vector<Slot> old(std::max<size_t>(64, 2 * slots_.size()));
  old.swap(slots_);
  for (const Slot& slot : old)
    if (slot.id != kNone) WEFT_TRY_STATUS(place(slot));
  return {};
}

std::optional<TokenId> Vocabulary::find(std::string_view bytes) const {
  if (slots_.empty()) return std::nullopt;
  const auto hash = static_cast<uint32_t>(hash_of(bytes));
  const size_t mask = slots_.size() - 1;
  for (size_t probe = 0; probe < kProbesMax; ++probe) {
    const Slot& slot = slots_[(hash + probe) & mask];
    if (slot.id == kNone) return std::nullopt;
    if (slot.hash == hash && slot.span.size == bytes.size() &&
        std::memcmp(bytes_.data() + slot.span.offset, bytes.data(), bytes.size()) == 0)
      return slot.id;
  }
  return std::nullopt;
}

std::string_view Vocabulary::text(TokenId id) const {
  if (!contains(id)) return {};
  return std::string_view(bytes_).substr(spans_[id].offset, spans_[id].size);
}

}  // namespace weft::text
