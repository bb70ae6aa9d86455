// Snapshots and predictions on their way to the broker: offered, what it lacks is put, then reported. A
// snapshot that cannot be uploaded is told and forgotten, for the next one may be; a prediction is the result
// itself.
#include <algorithm>

#include "peer/machine/peer_state.h"

namespace weft::peer {

namespace {
constexpr size_t kSnapshotsAtOnce = 4;  // so that small ones do not wait for the way there and back
constexpr size_t kPredictionsAtOnce = 16;
}  // namespace

void Peer::State::on_hashed(uint64_t of_generation, const Task& task,
                            std::vector<proto::TensorReference> tensors) {
  for (const proto::TensorReference& tensor : tensors)
    on_arrived(tensor.sha256, static_cast<uint64_t>(tensor.spec.bytes().value));
  if (!is_current(of_generation)) return;
  const bool is_snapshot = task.kind == TaskKind::Snapshot;
  if (is_snapshot && stage->hashing > 0) --stage->hashing;
  if (stage->failed) return;
  if (is_snapshot && task.key.step >= stage->machine.keep_from() && snapshots.run() == stage->assignment->run)
    snapshots.keep(task.key.step, shelf.list_of(tensors).blobs, copies_max());
  // A round that was given up for a later one.
  if (!is_snapshot || task.sequence > stage->machine.settled()) queue_upload(task, std::move(tensors));
  work();
}

void Peer::State::queue_upload(const Task& task, std::vector<proto::TensorReference> tensors) {
  Upload upload{.task = task, .tensors = std::move(tensors)};
  upload.blobs = shelf.list_of(upload.tensors).blobs;
  shelf.name(upload.blobs);
  stage->uploads.push_back(std::move(upload));
}

bool Peer::State::uploads_are_full() const {
  size_t snapshots_in = stage->hashing + stage->machine.snapshots_ahead(), predictions = 0;
  for (const Upload& upload : stage->uploads) ++(upload.is_snapshot() ? snapshots_in : predictions);
  return snapshots_in >= options.bounds.snapshot_uploads || predictions >= options.bounds.prediction_uploads;
}

// One more copy of the state has room beside those that are on their way to the broker.
bool Peer::State::may_copy() const {
  size_t going = stage->hashing + stage->machine.snapshots_ahead();
  for (const Upload& upload : stage->uploads) going += upload.is_snapshot();
  return going < copies_max();
}

void Peer::State::start_uploads() {
  if (!stage || stage->failed || !stage->is_heard || now < transfers_paused_until) return;
  size_t snapshots_going = 0, predictions_going = 0;
  std::vector<uint64_t> empty;
  for (Upload& upload : stage->uploads) {
    size_t& going = upload.is_snapshot() ? snapshots_going : predictions_going;
    if (upload.number == 0 && going < (upload.is_snapshot() ? kSnapshotsAtOnce : kPredictionsAtOnce)) {
      upload.number = ++last_upload;
      if (upload.blobs.empty()) {
        empty.push_back(upload.number);
        continue;
      }
      OfferBlobs offer{.upload = upload.number, .blobs = {}, .durable = upload.task.durable};
      for (const WantedBlob& blob : upload.blobs) offer.blobs.push_back(blob.sha256);
      out.push_back(std::move(offer));
    }
    if (upload.number != 0) ++going;
  }
  for (const uint64_t number : empty) finish_upload(number);
}

Upload* Peer::State::find_upload(uint64_t number) {
  if (!stage || stage->failed || number == 0) return nullptr;
  for (Upload& upload : stage->uploads)
    if (upload.number == number) return &upload;
  return nullptr;
}

void Peer::State::on_missing(uint64_t number, const Result<std::vector<Digest>>& missing) {
  Upload* upload = find_upload(number);
  if (upload == nullptr || !upload->to_put.empty()) return;
  if (!missing) return on_upload_failed(*upload, missing.error());
  for (const Digest& sha256 : *missing) {
    const bool offered = std::any_of(upload->blobs.begin(), upload->blobs.end(),
                                     [&](const WantedBlob& blob) { return blob.sha256 == sha256; });
    if (!offered)
      return on_upload_failed(*upload,
                              {ErrorCode::InvalidArgument, "the broker lacks what it was not offered"});
    upload->to_put.insert(sha256);
  }
  if (upload->to_put.empty()) return finish_upload(number);
  const uint64_t rate = upload->is_snapshot() ? stage->assignment->replication_rate : 0;
  for (const Digest& sha256 : upload->to_put)
    out.push_back(UploadBlob{number, sha256, upload->task.durable, rate});
}

void Peer::State::on_uploaded(uint64_t number, const Digest& sha256, const Status& stored) {
  Upload* upload = find_upload(number);
  if (upload == nullptr) return;
  if (!stored) return on_upload_failed(*upload, stored.error());
  if (upload->to_put.erase(sha256) != 0 && upload->to_put.empty()) finish_upload(number);
}

// It is offered anew, for some of it may have been stored.
void Peer::State::on_upload_failed(Upload& upload, const Error& error) {
  if (!try_again(++upload.attempts, error.code)) return finish_upload(upload.number, error);
  upload.number = 0;
  upload.to_put.clear();
}

void Peer::State::finish_upload(uint64_t number, const std::optional<Error>& failure) {
  const auto at = std::find_if(stage->uploads.begin(), stage->uploads.end(),
                               [&](const Upload& upload) { return upload.number == number; });
  Upload upload = std::move(*at);
  stage->uploads.erase(at);
  shelf.unname(upload.blobs);
  const proto::JobNumber run = stage->assignment->run;
  const proto::PlanVersion version = stage->assignment->plan_version;
  if (upload.is_snapshot()) {
    proto::CheckpointReport done{.run = run, .plan_version = version, .step = upload.task.key.step};
    if (failure)
      done.failure = failure->within("uploading");
    else
      done.tensors = std::move(upload.tensors);
    report(upload.task.sequence, std::move(done), upload.task);
  } else if (failure) {
    return fail_stage(failure->within("uploading"));
  } else {
    report(upload.task.sequence,
           proto::PredictionReport{run, version, upload.task.key.microbatch, std::move(upload.tensors)});
  }
  work();
}

void Peer::State::drop_settled_uploads() {
  std::erase_if(stage->uploads, [&](const Upload& upload) {
    const bool settled = upload.is_snapshot() && upload.task.sequence <= stage->machine.settled();
    if (settled) shelf.unname(upload.blobs);
    return settled;
  });
}

}  // namespace weft::peer
