#include "broker/service/blob_keeper.h"

#include <algorithm>
#include <chrono>

namespace weft::broker {

namespace {

// A job that failed or was stopped may be resumed until then: its data stays.
constexpr std::chrono::milliseconds kResumableFor = std::chrono::hours(7 * 24);
constexpr auto kTransientYoung = std::chrono::hours(1);     // where no run says better
constexpr Duration kDamageEvery = std::chrono::minutes(1);  // is looked for because of one peer

std::string damage_line(const Digest& blob) {
  return "error blob_damaged sha256=" + to_hex(blob) + " advice=\"look after this disk\"";
}

}  // namespace

// What is durable is spoken of from now on: it is no longer somebody's upload.
void BlobKeeper::on_durable(std::span<const Record> records) {
  std::vector<Digest> blobs;
  const auto add = [&](const std::vector<proto::TensorReference>& tensors) {
    for (const proto::TensorReference& tensor : tensors) blobs.push_back(tensor.sha256);
  };
  for (const Record& record : records) {
    if (const auto* submitted = std::get_if<JobSubmitted>(&record)) {
      for (const proto::PackedFile& file : submitted->submission->files)
        for (const proto::FilePiece& piece : file.pieces)
          if (piece.sha256) blobs.push_back(*piece.sha256);
    } else if (const auto* checkpoint = std::get_if<CheckpointCommitted>(&record)) {
      add(checkpoint->tensors);
    } else if (const auto* result = std::get_if<ResultCommitted>(&record)) {
      add(result->result.tensors);
    } else if (const auto* prediction = std::get_if<PredictionCommitted>(&record)) {
      add(prediction->report.outputs);
    }
  }
  if (!blobs.empty()) leases_.refer(blobs);
}

uint32_t BlobKeeper::missing_of(const proto::CheckpointReport& report) const {
  return static_cast<uint32_t>(
      std::count_if(report.tensors.begin(), report.tensors.end(),
                    [&](const auto& tensor) { return !blobs_.is_here(tensor.sha256); }));
}

// Files of jobs get another name at once: their jobs may be resumed before they are gone.
void BlobKeeper::remove_old(const std::filesystem::path& jobs, const std::set<proto::JobNumber>& open) {
  namespace fs = std::filesystem;
  std::set<std::string> kept;
  for (const proto::JobNumber job : open) kept.insert(std::to_string(job));
  std::vector<fs::path> old;
  std::error_code code;
  for (const auto& entry : fs::directory_iterator(jobs, code))
    if (!kept.contains(entry.path().filename().string())) old.push_back(entry.path());
  for (fs::path& path : old) {
    const fs::path before = path;
    path += ".old";
    fs::rename(before, path, code);
  }
  outside_.on_disk([this, old = std::move(old)] {
    blobs_.remove_wiped();
    std::error_code failed;
    for (const fs::path& path : old) fs::remove_all(path, failed);
  });
}

void BlobKeeper::keep_transient(KeepTransient keep) {
  transient_kept_ = keep.blobs;
  outside_.on_disk([this, keep = std::move(keep)] {
    (void)blobs_.keep_transient({keep.blobs.begin(), keep.blobs.end()},
                                std::chrono::duration_cast<std::chrono::milliseconds>(keep.young));
  });
}

int64_t BlobKeeper::resumable_since(int64_t unix_ms) { return unix_ms - kResumableFor.count(); }

// Now and then, beside other work: blobs that nobody speaks of any more. What somebody has a lease on stays
// (blob_leases.h), and what was uploaded lately (BlobStore::collect): its job may not be submitted yet.
void BlobKeeper::collect(Instant now, std::set<Digest> open, Result<std::set<Digest>> ended) {
  next_collection_ = now + collect_every_;
  if (!ended) return outside_.on_line("warning blobs_not_collected reason=\"" + ended.error().message + "\"");
  open.merge(*ended);
  leases_.refer(open);
  std::set<Digest> kept = leases_.held(now);
  kept.insert(open.begin(), open.end());
  outside_.on_disk([this, transient = transient_kept_] {
    (void)blobs_.keep_transient({transient.begin(), transient.end()}, kTransientYoung);
  });
  outside_.on_disk([this, kept = std::move(kept)] {
    const auto freed = blobs_.collect(kept);
    if (!freed)
      outside_.on_line("warning blobs_not_collected reason=\"" + freed.error().message + "\"");
    else if (*freed > 0)
      outside_.on_line("info blobs_collected bytes_freed=" + std::to_string(*freed));
  });
}

// What a peer has to fetch from us, for on_received().
void BlobKeeper::on_sent(const Send& sent) {
  const auto recipient = recipients_.find(sent.connection);
  if (recipient == recipients_.end()) return;
  auto& stages = recipient->second.stages;
  if (std::holds_alternative<proto::StandBy>(*sent.message))
    recipient->second.stand_by = sent.message;
  else if (const auto* assigned = std::get_if<proto::AssignStage>(sent.message.get()))
    stages[assigned->run] = sent.message;
  else if (const auto* released = std::get_if<proto::ReleaseStage>(sent.message.get()))
    stages.erase(released->run);
}

bool BlobKeeper::may_fetch(const Recipient& who, const Digest& blob) const {
  const auto names_it = [&](const std::vector<proto::TensorReference>& tensors) {
    return std::any_of(tensors.begin(), tensors.end(),
                       [&](const proto::TensorReference& tensor) { return tensor.sha256 == blob; });
  };
  return std::any_of(who.stages.begin(), who.stages.end(),
                     [&](const auto& stage) {
                       return names_it(std::get<proto::AssignStage>(*stage.second).tensors);
                     }) ||
         (who.stand_by && names_it(std::get<proto::StandBy>(*who.stand_by).tensors));
}

// A peer was given bytes that are not those of their name: what of ours is damaged goes where it can be
// uploaded again. Looked at is what it was to fetch, and of that what it names, now and then: a false claim
// costs a hash of that.
void BlobKeeper::on_received(const Received& report, Instant now) {
  std::optional<Digest> damaged;
  if (const auto* failed = std::get_if<proto::StageFailed>(report.message.get()))
    damaged = failed->damaged;
  else if (const auto* standing = std::get_if<proto::StandingBy>(report.message.get()))
    damaged = standing->damaged;
  const auto recipient = recipients_.find(report.connection);
  if (!damaged || recipient == recipients_.end()) return;

  std::erase_if(damage_looked_for_, [&](const auto& entry) { return now - entry.second > kDamageEvery; });
  const Recipient& who = recipient->second;
  if (damage_looked_for_.contains(who.who) || !may_fetch(who, *damaged)) return;
  damage_looked_for_[who.who] = now;
  outside_.on_disk([this, blob = *damaged] {
    if (blobs_.quarantine(blob).value_or(false)) outside_.on_line(damage_line(blob));
  });
}

// Whether what a run would go back to is what it was: a peer said that it is not.
void BlobKeeper::verify(VerifyBlobs request) {
  outside_.on_disk([this, request = std::move(request)] {
    BlobsVerified verified{.job = request.job, .step = request.step};
    for (const Digest& blob : request.blobs) {
      const bool is_bad = !blobs_.has(blob) || blobs_.quarantine(blob).value_or(true);
      verified.bad += is_bad;
      if (is_bad) outside_.on_line(damage_line(blob));
    }
    outside_.on_verified(verified);
  });
}

void BlobKeeper::make_durable(KeepBlobs request) {
  outside_.on_disk([this, request = std::move(request)] {
    BlobsKept done{.job = request.job, .step = request.step, .kept = {}};
    for (const Digest& blob : request.blobs) {
      const Result<bool> have = blobs_.have(blob, storage::Durability::Durable);
      if (have && *have) continue;
      done.kept = have ? fail(ErrorCode::NotFound, "blob " + to_hex(blob) + " is not here any more")
                       : fail(have.error());
      break;
    }
    outside_.on_kept(done);
  });
}

}  // namespace weft::broker
