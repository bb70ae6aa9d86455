#include "broker/turn.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/check.h"

namespace weft::broker {

namespace {

std::optional<ConnectionId> sender_of(const Event& event) {
  return std::visit(
      [](const auto& e) -> std::optional<ConnectionId> {
        if constexpr (requires { e.connection; })
          return e.connection;
        else
          return std::nullopt;
      },
      event);
}

}  // namespace

void Turn::add(const Event& event, Effects effects) {
  WEFT_CHECK(durable_ == 0 && !one_by_one_);
  parts_.push_back({sender_of(event), effects.records.size(), std::move(effects.effects)});
  std::move(effects.records.begin(), effects.records.end(), std::back_inserter(records_));
}

std::span<const Record> Turn::to_append() const {
  const auto rest = std::span(records_).subspan(durable_);
  return one_by_one_ && !rest.empty() ? rest.first(parts_[next_].record_count) : rest;
}

void Turn::skip_to_records() {
  while (next_ < parts_.size() && parts_[next_].record_count == 0) ++next_;
}

Turn::Verdict Turn::on_appended(const Status& appended) {
  WEFT_CHECK(!to_append().empty());
  if (!appended) {
    const ErrorCode code = appended.error().code;
    if (code == ErrorCode::ResourceExhausted) return Verdict::Waits;
    // Where there is nobody to blame, a refusal is the disk's.
    const bool has_sender = !one_by_one_ || parts_[next_].sender.has_value();
    if (code != ErrorCode::InvalidArgument && !(code == ErrorCode::PermissionDenied && has_sender))
      return Verdict::Ends;
    if (!std::exchange(one_by_one_, true)) {
      skip_to_records();
      return Verdict::Refused;
    }
    parts_[next_].is_refused = true;
  }
  durable_ += to_append().size();
  if (one_by_one_) {
    ++next_;
    skip_to_records();
  }
  return appended ? Verdict::Durable : Verdict::Refused;
}

Turn::Done Turn::finish() {
  WEFT_CHECK(to_append().empty());
  Turn over = std::exchange(*this, {});
  Done done{.records = std::move(over.records_), .parts = {}};
  std::span<const Record> rest = done.records;
  for (Stepped& part : over.parts_) {
    done.parts.push_back(
        {part.sender, rest.first(part.record_count), std::move(part.effects), part.is_refused});
    rest = rest.subspan(part.record_count);
  }
  return done;
}

}  // namespace weft::broker
