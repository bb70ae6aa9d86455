#include "peer/service/followed_means.h"

#include <cstddef>
#include <span>
#include <string>
#include <utility>

namespace weft::peer {

// Means are taken and weighed by those that have learnt something.
Status FollowedMeans::add(const Task& task, const std::vector<AgreedShare>& means) {
  if (task.kind != TaskKind::Differ && task.kind != TaskKind::Agree) return {};
  if (!file_ && !means.empty()) file_.reset(std::tmpfile());
  if (!file_ && !means.empty())
    return fail(ErrorCode::ResourceExhausted, "no file can be made for what the others agree on");
  Kept& kept = kept_.emplace_back();
  kept.task = task;
  for (const AgreedShare& one : means) {
    const std::span<const std::byte> bytes = one.tensor.bytes();
    bytes_ += static_cast<int64_t>(bytes.size());
    if (bytes_ > bytes_max_.value)
      return fail(ErrorCode::ResourceExhausted, "the others agreed on " + std::to_string(bytes_ >> 20) +
                                                    " MiB before what they have was here");
    if (std::fwrite(bytes.data(), 1, bytes.size(), file_.get()) != bytes.size())
      return fail(ErrorCode::ResourceExhausted, "no room on the disk for what the others agree on");
    kept.means.push_back({one.number, one.replica, {}, one.range});
    kept.specs.push_back(one.tensor.spec());
  }
  return {};
}

Status FollowedMeans::take_all(SeatAgreement& to) {
  if (file_ && (std::fflush(file_.get()) != 0 || std::fseek(file_.get(), 0, SEEK_SET) != 0))
    return fail(ErrorCode::ResourceExhausted, "what the others agreed on cannot be read again");
  for (Kept& kept : std::exchange(kept_, {})) {
    for (size_t i = 0; i < kept.means.size(); ++i) {
      dag::Tensor tensor(kept.specs[i]);
      const std::span<std::byte> bytes = tensor.mutable_bytes();
      if (std::fread(bytes.data(), 1, bytes.size(), file_.get()) != bytes.size())
        return fail(ErrorCode::ResourceExhausted, "what the others agreed on cannot be read again");
      kept.means[i].tensor = std::move(tensor);
    }
    if (kept.task.kind == TaskKind::Agree) {
      WEFT_TRY_STATUS(to.agree(kept.task, kept.means));
      continue;
    }
    WEFT_TRY(const auto sent, to.differ(kept.task));
    if (!sent.empty()) return fail(ErrorCode::Internal, "a follower has learnt something");
  }
  file_.reset();
  bytes_ = 0;
  return {};
}

}  // namespace weft::peer
