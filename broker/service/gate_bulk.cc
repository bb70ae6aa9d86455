// The gate's larger goods: blobs in and out, microbatches of data. Disks are touched on threads of their own.
#include <algorithm>

#include "broker/service/gate_client.h"

namespace weft::broker {

using proto::FrameKind;

namespace {

constexpr size_t kQueuedMax = 32 << 20;  // bytes on their way to one connection before the next blob is begun
constexpr size_t kDownloadsMax = 4096;   // asked for and not begun
constexpr size_t kRequestCost = 4 << 10;  // what a request to the disk counts for at least
constexpr size_t kMicrobatchesMax = 256;  // of one connection at once
constexpr uint64_t kBlobSizeMax = uint64_t{64} << 30;

storage::Durability durability_of(bool durable) {
  return durable ? storage::Durability::Durable : storage::Durability::Transient;
}

}  // namespace

void Gate::get_blob(const ClientPtr& client, const proto::GetBlob& request) {
  if (client->downloads.size() >= kDownloadsMax)
    return refuse(client, {ErrorCode::ResourceExhausted, "too many blobs are asked for at once"});
  client->downloads.push_back(request);
  next_download(client);
}

void Gate::next_download(const ClientPtr& client) {
  while (!client->downloads.empty() && client->connection->stats().bytes_queued < kQueuedMax) {
    const proto::GetBlob request = client->downloads.front();
    client->downloads.pop_front();
    const auto blob = blobs_.view(request.sha256);
    if (!blob) {
      send(client, proto::BlobAnswer{request.request, blob.error().code, blob.error().message, 0});
      continue;
    }
    const size_t size = blob->bytes.size();
    send(client, proto::BlobAnswer{request.request, ErrorCode::Internal, "", size});
    for (size_t at = 0; at < size; at += proto::kChunkSizeMax)
      client->connection->send(
          {.kind = static_cast<uint8_t>(FrameKind::Chunk),
           .head = proto::encode_chunk_head(request.request),
           .body = {blob->owner,
                    blob->bytes.subspan(at, std::min<size_t>(proto::kChunkSizeMax, size - at))}});
  }
}

void Gate::put_blob(const ClientPtr& client, const proto::PutBlob& request) {
  if (client->upload && !client->upload->is_complete())
    return refuse(client,
                  {ErrorCode::InvalidArgument, "a blob was begun before the one before it was complete"});
  if (request.size > kBlobSizeMax)
    return refuse(client, {ErrorCode::ResourceExhausted,
                           "a blob of " + std::to_string(request.size) + " bytes is too large"});
  const auto upload = std::make_shared<Client::Upload>();
  upload->request = request.request;
  upload->left = request.size;
  if (request.packed) upload->framing.emplace(request.size);
  client->upload = upload;
  begin_files_work(client, kRequestCost);
  const std::weak_ptr<Client> weak = client;
  files_thread_->post([this, upload, request, weak] {
    const auto durability = durability_of(request.durable);
    if (!blobs_.have(request.sha256, durability).value_or(false)) {
      auto writer = blobs_.begin(request.sha256, request.size, durability);
      if (writer)
        upload->writer = std::move(*writer);
      else
        upload->error = writer.error();
      if (request.packed && !upload->error)
        if (const Status begun = upload->begin_unpacking(blobs_, request); !begun)
          upload->error = begun.error();
    }
    const bool is_over = request.size == 0;
    if (is_over && upload->writer && !upload->error) {
      const Status done = upload->writer->finish();
      if (!done) upload->error = done.error();
    }
    loop_.post([this, upload, weak, is_over] {
      const auto here = weak.lock();
      if (!here) return;
      end_files_work(here, kRequestCost);
      if (is_over)
        send(here,
             proto::BlobAnswer{upload->request, upload->error ? upload->error->code : ErrorCode::Internal,
                               upload->error ? upload->error->message : "", 0});
    });
  });
}

Status Gate::Client::Upload::begin_unpacking(const storage::BlobStore& blobs, const proto::PutBlob& request) {
  if (request.base) {
    WEFT_TRY(base, blobs.view(*request.base));
    if (base.bytes.size() != request.size)
      return fail(ErrorCode::NotFound, "the base of a packed blob has another size");
  }
  unpacker = std::make_unique<storage::Unpacker>(request.size, base.bytes);
  return {};
}

Status Gate::Client::Upload::write(std::span<const std::byte> bytes) {
  if (!unpacker) return writer->write(bytes);
  return unpacker->take(bytes, [&](std::span<const std::byte> unpacked) { return writer->write(unpacked); });
}

void Gate::on_chunk(const ClientPtr& client, net::InFrame frame) {
  const auto chunk = proto::decode_chunk(frame.payload.span());
  if (!chunk) return refuse(client, chunk.error());
  const auto upload = client->upload;
  if (!upload || upload->request != chunk->request || upload->is_complete() || chunk->bytes.empty() ||
      (!upload->framing && chunk->bytes.size() > upload->left))
    return refuse(client, {ErrorCode::InvalidArgument, "bytes of no blob that was announced"});
  size_t size = chunk->bytes.size();
  if (!upload->framing) {
    upload->left -= size;
  } else {
    // A few bytes may stand for a whole unit: what is in work, and what one chunk makes of it, is bounded by
    // what they become.
    const uint64_t before = upload->framing->left();
    if (const Status framed = upload->framing->take(chunk->bytes); !framed)
      return refuse(client, framed.error());
    const uint64_t begun = before - upload->framing->left();
    if (begun > storage::kPackedUnit)
      return refuse(client, {ErrorCode::InvalidArgument, "a chunk with more than one unit of a packed blob"});
    size = std::max<size_t>(size, begun);
  }
  const bool last = upload->is_complete();
  begin_files_work(client, size);
  const std::weak_ptr<Client> weak = client;
  const auto payload = std::make_shared<net::InFrame>(std::move(frame));
  files_thread_->post([this, upload, payload, weak, last, size] {
    const auto again = proto::decode_chunk(payload->payload.span());
    if (upload->writer && !upload->error) {
      Status status = upload->write(again->bytes);
      if (status && last) status = upload->writer->finish();
      if (!status) upload->error = status.error();
    }
    if (last) {
      upload->writer.reset();
      upload->unpacker.reset();
      upload->base = {};
    }
    loop_.post([this, upload, weak, last, size] {
      const auto here = weak.lock();
      if (!here) return;
      end_files_work(here, size);
      if (last)
        send(here,
             proto::BlobAnswer{upload->request, upload->error ? upload->error->code : ErrorCode::Internal,
                               upload->error ? upload->error->message : "", 0});
    });
  });
}

// On the files' thread: what is there only for a while may have to be made durable first.
void Gate::have_blobs(const ClientPtr& client, const proto::HaveBlobs& request) {
  const size_t size = kRequestCost + request.blobs.size() * sizeof(Digest);
  begin_files_work(client, size);
  const std::weak_ptr<Client> weak = client;
  files_thread_->post([this, request, weak, size] {
    proto::MissingBlobs missing{request.request, {}};
    for (const Digest& blob : request.blobs)
      if (!blobs_.have(blob, durability_of(request.durable)).value_or(false)) missing.blobs.push_back(blob);
    loop_.post([this, missing = std::move(missing), weak, size] {
      const auto here = weak.lock();
      if (!here) return;
      end_files_work(here, size);
      send(here, missing);
    });
  });
}

void Gate::open_feed(proto::JobNumber job, const proto::Secret& key, bool open) {
  Feed& feed = feeds_[job];
  feed.key = key;
  feed.open = open;
  if (!open) return;
  for (const auto& [weak, request] : std::exchange(feed.waiting, {}))
    if (const auto client = weak.lock()) read_microbatch(client, request);
}

void Gate::close_feed(proto::JobNumber job) {
  const auto at = feeds_.find(job);
  if (at == feeds_.end()) return;
  const auto waiting = std::move(at->second.waiting);
  feeds_.erase(at);
  for (const auto& [weak, request] : waiting) {
    const auto client = weak.lock();
    if (!client) continue;
    --client->microbatches_in_work;
    send(client, proto::MicrobatchAnswer{request.request, ErrorCode::PermissionDenied,
                                         "the run feeds no data any more", 0, 0});
  }
}

void Gate::get_microbatch(const ClientPtr& client, const proto::GetMicrobatch& request) {
  const auto feed = feeds_.find(request.run);
  if (feed == feeds_.end() || feed->second.key != request.data_key)
    return send(client, proto::MicrobatchAnswer{request.request, ErrorCode::PermissionDenied,
                                                "the run does not feed data to this peer", 0, 0});
  if (++client->microbatches_in_work > kMicrobatchesMax)
    return refuse(client, {ErrorCode::ResourceExhausted, "too many microbatches are asked for at once"});
  if (!feed->second.open) return feed->second.waiting.emplace_back(client, request), void();
  read_microbatch(client, request);
}

void Gate::read_microbatch(const ClientPtr& client, const proto::GetMicrobatch& request) {
  const std::weak_ptr<Client> weak = client;
  feeder_thread_->post([this, request, weak] {
    auto read = std::make_shared<Result<Feeder::Microbatch>>(feeder_.read(request));
    loop_.post([this, request, weak, read] {
      const auto here = weak.lock();
      if (!here) return;
      --here->microbatches_in_work;
      if (!*read)
        return send(
            here, proto::MicrobatchAnswer{request.request, read->error().code, read->error().message, 0, 0});
      send(here, proto::MicrobatchAnswer{request.request, ErrorCode::Internal, "", (*read)->sample_position,
                                         (*read)->valid_count});
      for (uint32_t i = 0; i < (*read)->tensors.size(); ++i) {
        const auto tensor = std::make_shared<const dag::Tensor>((*read)->tensors[i]);
        here->connection->send({.kind = static_cast<uint8_t>(FrameKind::Tensor),
                                .head = proto::encode_header({.run = request.run,
                                                              .plan_version = 0,
                                                              .step = request.step,
                                                              .microbatch = request.microbatch,
                                                              .edge = i,
                                                              .program = request.program,
                                                              .direction = proto::Direction::Forward,
                                                              .replica = 0,
                                                              .spec = tensor->spec()}),
                                .body = {tensor, tensor->bytes()}});
      }
    });
  });
}

}  // namespace weft::broker
