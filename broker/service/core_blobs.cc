// What the core knows of blobs: which are spoken of, what may go, and what may be damaged.
#include <algorithm>
#include <chrono>

#include "broker/service/core.h"

namespace weft::broker {

namespace {

// A job that failed or was stopped may be resumed until then: its data stays.
constexpr std::chrono::milliseconds kResumableFor = std::chrono::hours(7 * 24);
constexpr auto kTransientYoung = std::chrono::hours(1);     // where no run says better
constexpr Duration kDamageEvery = std::chrono::minutes(1);  // is looked for because of one peer

}  // namespace

// What is durable is spoken of from now on: it is no longer somebody's upload.
void Core::refer_to_blobs(std::span<const Record> records) {
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

// What a broker before this one left: states in memory that spilled, and the files of jobs that are over.
// These get another name at once: their jobs may be resumed before they are gone.
void Core::remove_old_files() {
  namespace fs = std::filesystem;
  std::set<std::string> kept;
  for (const proto::JobNumber job : broker_.open_jobs()) kept.insert(std::to_string(job));
  std::vector<fs::path> old;
  std::error_code code;
  for (const auto& entry : fs::directory_iterator(options_.planning.process.jobs, code))
    if (!kept.contains(entry.path().filename().string())) old.push_back(entry.path());
  for (fs::path& path : old) {
    const fs::path before = path;
    path += ".old";
    fs::rename(before, path, code);
  }
  disk_thread_->post([this, old = std::move(old)] {
    blobs_.remove_wiped();
    std::error_code failed;
    for (const fs::path& path : old) fs::remove_all(path, failed);
  });
}

// Now and then, beside other work: blobs that nobody speaks of any more. What somebody has a lease on stays
// (blob_leases.h), and what was uploaded lately (BlobStore::collect): its job may not be submitted yet.
void Core::collect_garbage() {
  if (now().monotonic < next_collection_) return;
  next_collection_ = now().monotonic + options_.collect_every;
  std::set<Digest> referenced = broker_.referenced_blobs();
  auto of_ended = store_->blobs_of_ended(now().unix_ms - kResumableFor.count());
  if (!of_ended)
    return options_.log("warning blobs_not_collected reason=\"" + of_ended.error().message + "\"");
  referenced.merge(*of_ended);
  leases_.refer(referenced);
  std::set<Digest> kept = leases_.held(now().monotonic);
  kept.insert(referenced.begin(), referenced.end());
  disk_thread_->post([this, kept = transient_kept_] {
    (void)blobs_.keep_transient({kept.begin(), kept.end()}, kTransientYoung);
  });
  disk_thread_->post([this, kept = std::move(kept)] {
    const auto freed = blobs_.collect(kept);
    const std::string line = freed ? "info blobs_collected bytes_freed=" + std::to_string(*freed)
                                   : "warning blobs_not_collected reason=\"" + freed.error().message + "\"";
    if (!freed || *freed > 0) from_worker([this, line] { options_.log(line); });
  });
}

// What a peer has to fetch from us, for look_for_damage.
void Core::note_what_it_may_fetch(const Send& send) {
  const bool is_stage = std::holds_alternative<proto::AssignStage>(*send.message);
  const bool is_stand_by = std::holds_alternative<proto::StandBy>(*send.message);
  if (!is_stage && !is_stand_by && !std::holds_alternative<proto::ReleaseStage>(*send.message)) return;
  const auto known = connections_.find(send.connection);
  if (known == connections_.end()) return;
  if (is_stand_by)
    known->second.stand_by = send.message;
  else
    known->second.stage = is_stage ? send.message : nullptr;
}

// A peer was given bytes that are not those of their name: what of ours is damaged goes where it can be
// uploaded again. Looked at is what it was to fetch, and of that what it names, now and then: a false claim
// costs a hash of that.
void Core::look_for_damage(const Received& report) {
  std::optional<Digest> damaged;
  if (const auto* failed = std::get_if<proto::StageFailed>(report.message.get()))
    damaged = failed->damaged;
  else if (const auto* standing = std::get_if<proto::StandingBy>(report.message.get()))
    damaged = standing->damaged;
  const auto known = connections_.find(report.connection);
  if (!damaged || known == connections_.end()) return;

  std::erase_if(damage_looked_for_,
                [](const auto& entry) { return now().monotonic - entry.second > kDamageEvery; });
  if (damage_looked_for_.contains(known->second.who)) return;

  const auto names_it = [&](const std::vector<proto::TensorReference>& tensors) {
    return std::any_of(tensors.begin(), tensors.end(),
                       [&](const proto::TensorReference& tensor) { return tensor.sha256 == *damaged; });
  };
  const Known& who = known->second;
  const bool may_fetch_it = (who.stage && names_it(std::get<proto::AssignStage>(*who.stage).tensors)) ||
                            (who.stand_by && names_it(std::get<proto::StandBy>(*who.stand_by).tensors));
  if (!may_fetch_it) return;
  damage_looked_for_[who.who] = now().monotonic;
  disk_thread_->post([this, blob = *damaged] {
    if (blobs_.quarantine(blob).value_or(false))
      options_.log("error blob_damaged sha256=" + to_hex(blob) + " advice=\"look after this disk\"");
  });
}

// Whether what a run would go back to is what it was: a peer said that it is not.
void Core::verify_blobs(VerifyBlobs& request) {
  disk_thread_->post([this, request = std::move(request)] {
    BlobsVerified event{.job = request.job, .step = request.step};
    for (const Digest& blob : request.blobs) {
      const bool is_bad = !blobs_.has(blob) || blobs_.quarantine(blob).value_or(true);
      event.bad += is_bad;
      if (is_bad)
        options_.log("error blob_damaged sha256=" + to_hex(blob) + " advice=\"look after this disk\"");
    }
    from_worker([this, event] { step(event); });
  });
}

}  // namespace weft::broker
