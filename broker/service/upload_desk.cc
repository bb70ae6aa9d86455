#include "broker/service/upload_desk.h"

#include <algorithm>
#include <unordered_map>

#include "proto/codec/codec.h"
#include "storage/packed.h"

namespace weft::broker {

namespace {

constexpr size_t kRequestCost = 4 << 10;  // what a request to the disk counts for at least
constexpr uint64_t kBlobSizeMax = uint64_t{64} << 30;

storage::Durability durability_of(bool durable) {
  return durable ? storage::Durability::Durable : storage::Durability::Transient;
}

}  // namespace

struct UploadDesk::Upload {
  uint64_t request = 0;
  PeerId key{};
  Digest sha256{};
  uint64_t size = 0;
  uint64_t left = 0;                                // bytes that are still to come of one that is not packed
  std::optional<storage::PackedFraming> framing{};  // of one that is
  bool is_complete() const { return framing ? framing->is_complete() : left == 0; }
  // Work's.
  bool is_counted = false;                               // for its key
  std::unique_ptr<storage::BlobStore::Writer> writer{};  // none: what comes is not wanted
  storage::BlobView base{};
  std::unique_ptr<storage::Unpacker> unpacker{};
  std::optional<Error> error{};
  // Errors: NotFound, without the base or with one of another size.
  Status begin_unpacking(const storage::BlobStore& blobs, const proto::PutBlob& put);
  Status write(std::span<const std::byte> bytes);
  proto::BlobAnswer answer() const {
    return {request, error ? error->code : ErrorCode::Internal, error ? error->message : "", 0};
  }
};

Status UploadDesk::Upload::begin_unpacking(const storage::BlobStore& blobs, const proto::PutBlob& put) {
  if (put.base) {
    WEFT_TRY(base, blobs.view(*put.base));
    if (base.bytes.size() != put.size)
      return fail(ErrorCode::NotFound, "the base of a packed blob has another size");
  }
  unpacker = std::make_unique<storage::Unpacker>(put.size, base.bytes);
  return {};
}

Status UploadDesk::Upload::write(std::span<const std::byte> bytes) {
  if (!unpacker) return writer->write(bytes);
  return unpacker->take(bytes, [&](std::span<const std::byte> unpacked) { return writer->write(unpacked); });
}

void UploadDesk::put(ConnectionId whose, const PeerId& key, const proto::PutBlob& request, Instant now) {
  UploadPtr& last = uploads_[whose];
  if (last && !last->is_complete())
    return connections_.refuse(
        whose, {ErrorCode::InvalidArgument, "a blob was begun before the one before it was complete"});
  if (request.size > kBlobSizeMax)
    return connections_.refuse(whose, {ErrorCode::ResourceExhausted,
                                       "a blob of " + std::to_string(request.size) + " bytes is too large"});
  const auto upload = std::make_shared<Upload>();
  upload->request = request.request;
  upload->key = key;
  upload->sha256 = request.sha256;
  upload->size = upload->left = request.size;
  if (request.packed) upload->framing.emplace(request.size);
  last = upload;
  outside_.work(whose, kRequestCost, [this, upload, request, now]() -> std::optional<proto::Message> {
    if (const Status begun = begin(*upload, request, now); !begun) upload->error = begun.error();
    if (request.size > 0) return std::nullopt;
    finish(*upload, now);
    return upload->answer();
  });
}

// Without a writer, and without an error, what comes is there already.
Status UploadDesk::begin(Upload& upload, const proto::PutBlob& request, Instant now) {
  const auto durability = durability_of(request.durable);
  if (blobs_.have(request.sha256, durability).value_or(false)) {
    if (request.durable) leases_.ask(upload.key, request.sha256, now);
    return {};
  }
  if (request.durable) {  // copies of a state come all the time, and go with their round
    WEFT_TRY_STATUS(leases_.put(upload.key, request.sha256, request.size, now,
                                [this](const Digest& blob) { return blobs_.size(blob).has_value(); }));
    upload.is_counted = true;
  }
  WEFT_TRY(upload.writer, blobs_.begin(request.sha256, request.size, durability));
  return request.packed ? upload.begin_unpacking(blobs_, request) : Status{};
}

// All of it has come, or no more will.
void UploadDesk::finish(Upload& upload, Instant now) {
  if (upload.writer && !upload.error)
    if (const Status done = upload.writer->finish(); !done) upload.error = done.error();
  if (upload.is_counted && upload.error)
    leases_.drop(upload.key, upload.sha256);
  else if (upload.is_counted)  // it may have been taken for one that had gone, meanwhile
    (void)leases_.put(upload.key, upload.sha256, upload.size, now, [](const Digest&) { return true; });
  upload.is_counted = false;
  upload.writer.reset();
  upload.unpacker.reset();
  upload.base = {};
}

Result<size_t> UploadDesk::take(Upload& upload, std::span<const std::byte> bytes) {
  if (!upload.framing) {
    if (bytes.size() > upload.left)
      return fail(ErrorCode::InvalidArgument, "bytes of no blob that was announced");
    upload.left -= bytes.size();
    return bytes.size();
  }
  // A few bytes may stand for a whole unit: what is in work, and what one chunk makes of it, is bounded by
  // what they become.
  const uint64_t before = upload.framing->left();
  WEFT_TRY_STATUS(upload.framing->take(bytes));
  const uint64_t begun = before - upload.framing->left();
  if (begun > storage::kPackedUnit)
    return fail(ErrorCode::InvalidArgument, "a chunk with more than one unit of a packed blob");
  return std::max<size_t>(bytes.size(), begun);
}

void UploadDesk::on_chunk(ConnectionId whose, net::InFrame frame, Instant now) {
  const auto chunk = proto::decode_chunk(frame.payload.span());
  if (!chunk) return connections_.refuse(whose, chunk.error());
  const auto at = uploads_.find(whose);
  const UploadPtr upload = at == uploads_.end() ? nullptr : at->second;
  if (!upload || upload->request != chunk->request || upload->is_complete() || chunk->bytes.empty())
    return connections_.refuse(whose, {ErrorCode::InvalidArgument, "bytes of no blob that was announced"});
  const auto size = take(*upload, chunk->bytes);
  if (!size) return connections_.refuse(whose, size.error());
  const bool is_last = upload->is_complete();
  const auto payload = std::make_shared<const net::InFrame>(std::move(frame));
  outside_.work(whose, *size, [this, upload, payload, is_last, now]() -> std::optional<proto::Message> {
    const auto again = proto::decode_chunk(payload->payload.span());
    if (upload->writer && !upload->error)
      if (const Status status = upload->write(again->bytes); !status) upload->error = status.error();
    if (!is_last) return std::nullopt;
    finish(*upload, now);
    return upload->answer();
  });
}

void UploadDesk::have(ConnectionId whose, const PeerId& key, const proto::HaveBlobs& request, Instant now) {
  const size_t size = kRequestCost + 2 * request.blobs.size() * sizeof(Digest) +  // and its answer's
                      request.recipes.size() * sizeof(proto::BlobRecipe);
  outside_.work(whose, size, [this, key, request, now] { return look(key, request, now); });
}

// What is there only for a while may have to be made durable first.
proto::MissingBlobs UploadDesk::look(const PeerId& key, const proto::HaveBlobs& request, Instant now) {
  std::unordered_map<Digest, const dag::Recipe*> recipes;
  if (weights_ && request.durable)
    for (const proto::BlobRecipe& one : request.recipes) recipes.emplace(one.sha256, &one.recipe);
  budget_.begin_request();
  proto::MissingBlobs missing{request.request, {}};
  for (const Digest& blob : request.blobs) {
    const bool is_here = blobs_.have(blob, durability_of(request.durable)).value_or(false);
    if (is_here && request.durable) leases_.ask(key, blob, now);
    if (is_here || (request.durable && take_from_weights(key, blob, now))) continue;
    const auto recipe = recipes.find(blob);
    if (recipe == recipes.end() || !make_of_weights(key, blob, *recipe->second, now))
      missing.blobs.push_back(blob);
  }
  return missing;
}

bool UploadDesk::take_from_weights(const PeerId& key, const Digest& blob, Instant now) {
  const auto size = weights_ ? weights_->size_of(blob) : std::nullopt;
  if (!size) return false;
  const Status stored = store(
      key, blob, *size, [&](const data::ByteSink& sink) { return weights_->copy(blob, sink); }, now);
  if (!stored && stored.error().code == ErrorCode::Corrupted) weights_->forget(blob);
  return stored.has_value();
}

bool UploadDesk::make_of_weights(const PeerId& key, const Digest& blob, const dag::Recipe& recipe,
                                 Instant now) {
  const auto size = dag::bytes_of(recipe);
  if (!size || *size > kBlobSizeMax || !weights_->has_source_of(recipe)) return false;
  if (!budget_.take(key, recipe.source_size, now)) return false;
  const Status stored = store(
      key, blob, *size, [&](const data::ByteSink& sink) { return weights_->copy(recipe, sink); }, now);
  // The recipe may be wrong, or the file another one by now.
  if (!stored && stored.error().code == ErrorCode::Corrupted) (void)weights_->verify(recipe.source);
  return stored.has_value();
}

// As if the key had uploaded it: it counts for it, too.
Status UploadDesk::store(const PeerId& key, const Digest& blob, uint64_t size, const Copy& copy,
                         Instant now) {
  const auto is_there = [this](const Digest& other) { return blobs_.size(other).has_value(); };
  WEFT_TRY_STATUS(leases_.put(key, blob, size, now, is_there));
  const auto write = [&]() -> Status {
    WEFT_TRY(const auto writer, blobs_.begin(blob, size));
    WEFT_TRY_STATUS(copy([&](std::span<const std::byte> piece) { return writer->write(piece); }));
    return writer->finish();
  };
  const Status stored = write();
  if (!stored) leases_.drop(key, blob);
  return stored;
}

}  // namespace weft::broker
