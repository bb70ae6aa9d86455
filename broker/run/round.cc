#include "broker/run/round.h"

#include <string>

#include "base/check.h"
#include "broker/run/stalls.h"

namespace weft::broker {

void Round::begin(size_t stages) {
  made.assign(direct ? stages : 0, false);
  in.assign(stages, false);
}

bool Round::is_whole() const { return is_made() && all_said(in); }
bool Round::is_made() const { return all_said(made); }

Result<std::optional<Error>> Round::take(Instant now, uint32_t stage, const proto::CheckpointReport& report,
                                         uint32_t blobs_missing) {
  WEFT_CHECK(awaits(stage));
  std::optional<Error> failure = report.failure;
  if (!direct && blobs_missing != 0) {
    const std::string what =
        "a snapshot of which " + std::to_string(blobs_missing) + " tensors were not uploaded";
    if (!outlived) return fail(ErrorCode::InvalidArgument, what);
    failure = Error{ErrorCode::NotFound, what + ", or went with the broker that had them"};
  }
  if (!failure && skipped_steps.value_or(report.skipped_steps) != report.skipped_steps)
    failure = Error{ErrorCode::Corrupted, "it says that " + std::to_string(report.skipped_steps) +
                                              " steps were skipped, another stage says " +
                                              std::to_string(*skipped_steps)};
  (direct ? made : in)[stage] = true;
  if (!failure) {
    skipped_steps = report.skipped_steps;
    tensors.insert(tensors.end(), report.tensors.begin(), report.tensors.end());
  }
  if (!direct)
    failed = failed || failure;
  else if (!failure && is_made())
    made_at = now;
  return failure;
}

bool Round::drop() {
  failed = true;
  in.assign(in.size(), true);
  return is_made();
}

}  // namespace weft::broker
