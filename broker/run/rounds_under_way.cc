#include "broker/run/rounds_under_way.h"

#include <algorithm>

namespace weft::broker {

namespace {
bool is_transient_upload(const Round& round) { return !round.durable && !round.direct; }
}  // namespace

Round RoundsUnderWay::take_first() {
  Round round = std::move(rounds_.front());
  rounds_.pop_front();
  return round;
}

Round* RoundsUnderWay::asked(uint32_t stage, uint64_t step) {
  const auto at = std::find_if(rounds_.begin(), rounds_.end(),
                               [&](const Round& round) { return round.step == step && round.awaits(stage); });
  return at == rounds_.end() ? nullptr : &*at;
}

void RoundsUnderWay::on_resumed(uint32_t stage) {
  for (Round& round : rounds_) round.outlived = round.outlived || !round.in[stage];
}

bool RoundsUnderWay::can_leave_out(uint64_t step) const {
  return std::all_of(rounds_.begin(), rounds_.end(),
                     [&](const Round& round) { return round.step == step && !round.is_for_others(); });
}

void RoundsUnderWay::leave_out(const Absence& absence) {
  for (Round& round : rounds_)
    for (uint32_t s = 0; s < round.in.size(); ++s)
      if (absence.has(s)) round.leave_out(s, /*forgets=*/absence.is_open());
}

bool RoundsUnderWay::is_gated(uint64_t step) const {
  return std::any_of(rounds_.begin(), rounds_.end(), [&](const Round& round) {
    return round.step == step && round.gates && !round.is_whole();
  });
}

bool RoundsUnderWay::hold_the_run_up() const {
  return std::any_of(rounds_.begin(), rounds_.end(),
                     [](const Round& round) { return round.durable || round.gates; });
}

bool RoundsUnderWay::has(uint64_t sequence) const {
  return std::any_of(rounds_.begin(), rounds_.end(),
                     [&](const Round& round) { return round.sequence == sequence; });
}

std::vector<uint64_t> RoundsUnderWay::sequences() const {
  std::vector<uint64_t> sequences;
  sequences.reserve(rounds_.size());
  for (const Round& round : rounds_) sequences.push_back(round.sequence);
  return sequences;
}

bool RoundsUnderWay::has_whole(uint64_t committed) const {
  return !rounds_.empty() && rounds_.front().is_whole() && rounds_.front().step <= committed;
}

std::optional<Saving> RoundsUnderWay::saving(const std::vector<Bytes>& bytes) const {
  const auto at =
      std::find_if(rounds_.begin(), rounds_.end(), [](const Round& round) { return round.is_being_saved(); });
  return at == rounds_.end() ? std::nullopt : std::optional(at->saving(bytes));
}

MissingReports RoundsUnderWay::missing_reports() const {
  for (const Round& round : rounds_)
    if (MissingReports missing = missing_reports_of(round.direct ? round.made : round.in, true);
        !missing.stages.empty())
      return missing;
  return {};
}

void RoundsUnderWay::add_reported(std::vector<Digest>& blobs) const {
  for (const Round& round : rounds_)
    if (is_transient_upload(round))
      for (const auto& tensor : round.tensors) blobs.push_back(tensor.sha256);
}

std::optional<Instant> RoundsUnderWay::uploading_since() const {
  const auto oldest = std::find_if(rounds_.begin(), rounds_.end(), is_transient_upload);
  return oldest == rounds_.end() ? std::nullopt : std::optional(oldest->begun);
}

}  // namespace weft::broker
