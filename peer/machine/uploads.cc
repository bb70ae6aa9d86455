#include "peer/machine/uploads.h"

#include <algorithm>

namespace weft::peer {

namespace {
constexpr size_t kSnapshotsAtOnce = 4;  // so that small ones do not wait for the way there and back
constexpr size_t kPredictionsAtOnce = 16;
}  // namespace

void Uploads::add(const Task& task, std::vector<proto::TensorReference> tensors) {
  Upload upload{.task = task, .tensors = std::move(tensors)};
  upload.blobs = shelf_.list_of(upload.tensors).blobs;
  shelf_.name(upload.blobs);
  uploads_.push_back(std::move(upload));
}

void Uploads::keep(const Task& task, const std::vector<proto::TensorReference>& tensors) {
  Upload upload{.task = task, .blobs = shelf_.list_of(tensors).blobs};
  shelf_.name(upload.blobs);
  uploads_.push_back(std::move(upload));
}

bool Uploads::drop_direct() {
  const auto oldest =
      std::find_if(uploads_.begin(), uploads_.end(), [](const Upload& upload) { return upload.task.direct; });
  if (oldest == uploads_.end()) return false;
  shelf_.unname(oldest->blobs);
  uploads_.erase(oldest);
  return true;
}

std::vector<Uploads::Done> Uploads::start(PeerEffects& out) {
  size_t snapshots_going = 0, predictions_going = 0;
  std::vector<uint64_t> empty;
  for (Upload& upload : uploads_) {
    if (upload.task.direct) continue;
    size_t& going = upload.is_snapshot() ? snapshots_going : predictions_going;
    if (upload.number == 0 && going < (upload.is_snapshot() ? kSnapshotsAtOnce : kPredictionsAtOnce)) {
      upload.number = ++last_number_;
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
  std::vector<Done> done;
  done.reserve(empty.size());
  for (const uint64_t number : empty) done.push_back(take(number));
  return done;
}

std::optional<Uploads::Done> Uploads::on_missing(Instant now, uint64_t number,
                                                 const Result<std::vector<Digest>>& missing,
                                                 const Terms& terms, PeerEffects& out) {
  Upload* upload = find(number);
  if (upload == nullptr || !upload->to_put.empty()) return std::nullopt;
  if (!missing) return on_failed(now, *upload, missing.error());
  for (const Digest& sha256 : *missing) {
    const bool offered = std::any_of(upload->blobs.begin(), upload->blobs.end(),
                                     [&](const WantedBlob& blob) { return blob.sha256 == sha256; });
    if (!offered)
      return on_failed(now, *upload,
                       {ErrorCode::InvalidArgument, "the broker lacks what it was not offered"});
    upload->to_put.emplace(sha256, 0);
  }
  if (upload->to_put.empty()) return take(number);
  const bool paced = upload->is_snapshot() && upload->task.key.step != terms.last_step;
  for (const auto& [sha256, sent] : upload->to_put)
    out.push_back(UploadBlob{.generation = generation_,
                             .upload = number,
                             .sha256 = sha256,
                             .durable = upload->task.durable,
                             .rate = paced ? terms.snapshot_rate : 0,
                             .packs = terms.packs,
                             .base = terms.packs ? base_of(*upload, sha256) : std::nullopt});
  return std::nullopt;
}

// The same tensor in the snapshot before, as long as it is still here.
std::optional<Digest> Uploads::base_of(const Upload& upload, const Digest& sha256) const {
  if (!upload.is_snapshot()) return std::nullopt;
  for (const proto::TensorReference& tensor : upload.tensors) {
    if (tensor.sha256 != sha256) continue;
    const auto before = stored_.find(tensor.key);
    if (before == stored_.end() || !shelf_.holds(before->second)) return std::nullopt;
    return before->second;
  }
  return std::nullopt;
}

std::optional<Uploads::Done> Uploads::on_uploaded(Instant now, uint64_t number, const Digest& sha256,
                                                  const Status& stored) {
  Upload* upload = find(number);
  if (upload == nullptr) return std::nullopt;
  if (!stored) return on_failed(now, *upload, stored.error());
  if (upload->to_put.erase(sha256) == 0 || !upload->to_put.empty()) return std::nullopt;
  return take(number);
}

void Uploads::on_sent(uint64_t number, const Digest& sha256, uint64_t bytes) {
  Upload* upload = find(number);
  if (upload == nullptr) return;
  if (const auto at = upload->to_put.find(sha256); at != upload->to_put.end()) at->second = bytes;
}

std::optional<Uploads::Done> Uploads::on_failed(Instant now, Upload& upload, const Error& error) {
  if (!pauses_.try_again(now, ++upload.attempts, error.code)) return take(upload.number, error);
  upload.number = 0;
  upload.to_put.clear();
  return std::nullopt;
}

void Uploads::interrupt() {
  for (Upload& upload : uploads_) {
    upload.number = 0;
    upload.to_put.clear();
    upload.attempts = 0;
  }
  stored_.clear();  // a broker that starts anew has forgotten what need not outlive it
}

void Uploads::drop_snapshots(uint64_t settled) {
  std::erase_if(uploads_, [&](const Upload& upload) {
    const bool dropped = upload.is_snapshot() && upload.task.sequence <= settled;
    if (dropped) shelf_.unname(upload.blobs);
    return dropped;
  });
}

void Uploads::clear() {
  for (const Upload& upload : uploads_) shelf_.unname(upload.blobs);
  uploads_.clear();
  stored_.clear();
  hashing_ = 0;
}

size_t Uploads::snapshots() const {
  return hashing_ + static_cast<size_t>(std::count_if(uploads_.begin(), uploads_.end(),
                                                      [](const Upload& u) { return u.is_snapshot(); }));
}

std::set<uint64_t> Uploads::snapshot_steps() const {
  std::set<uint64_t> steps;
  for (const Upload& upload : uploads_)
    if (upload.is_snapshot()) steps.insert(upload.task.key.step);
  return steps;
}

// What the broker lacks is known once something is to be put.
std::optional<Uploads::Saving> Uploads::saving() const {
  const auto at = std::find_if(uploads_.begin(), uploads_.end(), [](const Upload& upload) {
    return upload.is_snapshot() && upload.task.durable && !upload.task.direct;
  });
  if (at == uploads_.end()) return std::nullopt;
  Saving saving{.step = at->task.key.step};
  if (at->to_put.empty()) return saving;
  for (const proto::TensorReference& tensor : at->tensors) {
    const Bytes size = tensor.spec.bytes();
    const auto putting = at->to_put.find(tensor.sha256);
    saving.saved +=
        putting == at->to_put.end() ? size : std::min(size, Bytes{static_cast<int64_t>(putting->second)});
  }
  return saving;
}

size_t Uploads::predictions() const {
  return static_cast<size_t>(
      std::count_if(uploads_.begin(), uploads_.end(), [](const Upload& u) { return !u.is_snapshot(); }));
}

bool Uploads::anything_waits() const {
  return std::any_of(uploads_.begin(), uploads_.end(),
                     [](const Upload& u) { return u.number == 0 && !u.task.direct; });
}

bool Uploads::has(uint64_t number) const {
  return number != 0 && std::any_of(uploads_.begin(), uploads_.end(),
                                    [&](const Upload& upload) { return upload.number == number; });
}

Upload* Uploads::find(uint64_t number) {
  if (number == 0) return nullptr;
  const auto at = std::find_if(uploads_.begin(), uploads_.end(),
                               [&](const Upload& upload) { return upload.number == number; });
  return at == uploads_.end() ? nullptr : &*at;
}

Uploads::Done Uploads::take(uint64_t number, std::optional<Error> failure) {
  const auto at = std::find_if(uploads_.begin(), uploads_.end(),
                               [&](const Upload& upload) { return upload.number == number; });
  Done done{std::move(*at), std::move(failure)};
  uploads_.erase(at);
  shelf_.unname(done.upload.blobs);
  if (done.upload.is_snapshot() && !done.failure)
    for (const proto::TensorReference& tensor : done.upload.tensors) stored_[tensor.key] = tensor.sha256;
  return done;
}

}  // namespace weft::peer
