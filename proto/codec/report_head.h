// Which run a stage's report is about, without decoding it.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "proto/messages.h"

namespace weft::proto {

struct ReportHead {
  JobNumber run = 0;
  PlanVersion plan_version = 0;
  bool operator==(const ReportHead&) const = default;
};

// Of an encoded message. Nothing: it is no report of a stage, or not written as encode() does; then decode()
// and look again.
std::optional<ReportHead> peek_report(std::span<const std::byte> bytes);
// Nothing: it is no report of a stage.
std::optional<ReportHead> head_of(const Message& message);

}  // namespace weft::proto
