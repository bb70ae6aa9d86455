// The gate's larger goods: blobs in and out, microbatches of data, each put into a queue as it is taken.
// What is written, and data, is on threads of its own.
#include <algorithm>

#include "broker/service/gate_client.h"

namespace weft::broker {

using proto::FrameKind;

namespace {

constexpr size_t kDownloadsMax = 4096;    // asked for and not begun
constexpr size_t kRequestCost = 4 << 10;  // what a request to the disk counts for at least
constexpr size_t kMicrobatchesMax = 256;  // of one connection at once
constexpr uint64_t kBlobSizeMax = uint64_t{64} << 30;

storage::Durability durability_of(bool durable) {
  return durable ? storage::Durability::Durable : storage::Durability::Transient;
}

}  // namespace

// ---- out

void Gate::get_blob(const ClientPtr& client, const proto::GetBlob& request) {
  if (client->loads.waiting.size() + client->spares.waiting.size() >= kDownloadsMax)
    return refuse(client, {ErrorCode::ResourceExhausted, "too many blobs are asked for at once"});
  const bool is_load = request.rate == 0;
  (is_load ? client->loads : client->spares).waiting.push_back(request);
  if (is_load) return send_loads(client);
  want_spare_turn(client);
}

// The next piece of a blob. False: there is nothing to send, or no room for it.
bool Gate::send_piece(const ClientPtr& client, bool is_load) {
  Client::Downloads& downloads = is_load ? client->loads : client->spares;
  while (!downloads.now) {
    if (downloads.waiting.empty() || client->bytes_queued() >= kQueuedMax) return false;
    const proto::GetBlob request = downloads.waiting.front();
    downloads.waiting.pop_front();
    auto blob = blobs_.open_blob(request.sha256);
    if (!blob) {
      send(client, proto::BlobAnswer{request.request, blob.error().code, blob.error().message, 0});
      continue;
    }
    const uint64_t size = (*blob)->size();
    send(client, proto::BlobAnswer{request.request, ErrorCode::Internal, "", size});
    if (size > 0) downloads.now = {request.request, std::move(*blob)};
  }
  if (client->bytes_queued() >= kQueuedMax) return false;
  Client::Download& now = *downloads.now;
  const auto size =
      static_cast<size_t>(std::min<uint64_t>(proto::kChunkSizeMax, now.blob->size() - now.done));
  const auto piece = now.blob->piece(now.done, size);
  if (!piece) {  // what was promised cannot be kept
    refuse(client, piece.error());
    return false;
  }
  client->connection->send({.kind = static_cast<uint8_t>(FrameKind::Chunk),
                            .head = proto::encode_chunk_head(now.request),
                            .body = {piece->owner, piece->bytes}});
  egress_.take(loop_.now(), size);
  now.done += size;
  if (now.done == now.blob->size()) downloads.now.reset();
  return true;
}

void Gate::send_loads(const ClientPtr& client) {
  while (clients_.contains(client->number) && send_piece(client, /*is_load=*/true)) {
  }
}

// Those who stand by have a piece each, in turn, when the line has carried what went before.
void Gate::want_spare_turn(const ClientPtr& client) {
  if (client->has_spare_turn || client->spares.is_empty()) return;
  client->has_spare_turn = true;
  spare_turns_.push_back(client);
  send_spares();
}

void Gate::send_spares() {
  while (!spare_turns_.empty()) {
    if (const Duration wait = egress_.wait(loop_.now()); wait > Duration{}) {
      egress_timer_ = loop_.after(wait, [this] { send_spares(); });
      return;
    }
    const ClientPtr client = spare_turns_.front().lock();
    spare_turns_.pop_front();
    if (!client) continue;
    client->has_spare_turn = false;
    if (!clients_.contains(client->number) || !client->loads.is_empty()) continue;  // comes again, drained
    if (!send_piece(client, /*is_load=*/false) || client->spares.is_empty()) continue;
    client->has_spare_turn = true;
    spare_turns_.push_back(client);
  }
}

// ---- in

void Gate::put_blob(const ClientPtr& client, const proto::PutBlob& request) {
  if (client->upload && !client->upload->is_complete())
    return refuse(client,
                  {ErrorCode::InvalidArgument, "a blob was begun before the one before it was complete"});
  if (request.size > kBlobSizeMax)
    return refuse(client, {ErrorCode::ResourceExhausted,
                           "a blob of " + std::to_string(request.size) + " bytes is too large"});
  const auto upload = std::make_shared<Upload>();
  upload->request = request.request;
  upload->key = client->connection->remote();
  upload->sha256 = request.sha256;
  upload->size = upload->left = request.size;
  if (request.packed) upload->framing.emplace(request.size);
  client->upload = upload;
  begin_files_work(client, kRequestCost);
  const ConnectionId number = client->number;
  files_thread_->post([this, upload, request, number, now = loop_.now()] {
    if (const Status begun = begin_upload(*upload, request, now); !begun) upload->error = begun.error();
    const bool is_over = request.size == 0;
    if (is_over) end_upload(*upload);
    loop_.post([this, upload, number, is_over] {
      const ClientPtr here = end_files_work(number, kRequestCost);
      if (!here) return;
      if (is_over) send(here, upload->answer());
    });
  });
}

// On the files' thread. Without a writer, and without an error, what comes is there already.
Status Gate::begin_upload(Upload& upload, const proto::PutBlob& request, Instant now) {
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

// On the files' thread: all of it has come, or no more will.
void Gate::end_upload(Upload& upload) {
  if (upload.writer && !upload.error)
    if (const Status done = upload.writer->finish(); !done) upload.error = done.error();
  if (upload.is_counted && upload.error)
    leases_.drop(upload.key, upload.sha256);
  else if (upload.is_counted)  // it may have been taken for one that had gone, meanwhile
    (void)leases_.put(upload.key, upload.sha256, upload.size, loop_.now(),
                      [](const Digest&) { return true; });
  upload.is_counted = false;
  upload.writer.reset();
  upload.unpacker.reset();
  upload.base = {};
}

Status Gate::Upload::begin_unpacking(const storage::BlobStore& blobs, const proto::PutBlob& request) {
  if (request.base) {
    WEFT_TRY(base, blobs.view(*request.base));
    if (base.bytes.size() != request.size)
      return fail(ErrorCode::NotFound, "the base of a packed blob has another size");
  }
  unpacker = std::make_unique<storage::Unpacker>(request.size, base.bytes);
  return {};
}

Status Gate::Upload::write(std::span<const std::byte> bytes) {
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
  const ConnectionId number = client->number;
  const auto payload = std::make_shared<net::InFrame>(std::move(frame));
  files_thread_->post([this, upload, payload, number, last, size] {
    const auto again = proto::decode_chunk(payload->payload.span());
    if (upload->writer && !upload->error)
      if (const Status status = upload->write(again->bytes); !status) upload->error = status.error();
    if (last) end_upload(*upload);
    loop_.post([this, upload, number, last, size] {
      const ClientPtr here = end_files_work(number, size);
      if (!here) return;
      if (last) send(here, upload->answer());
    });
  });
}

// On the files' thread: what is there only for a while may have to be made durable first.
void Gate::have_blobs(const ClientPtr& client, const proto::HaveBlobs& request) {
  const size_t size = kRequestCost + 2 * request.blobs.size() * sizeof(Digest);  // and its answer's
  begin_files_work(client, size);
  const ConnectionId number = client->number;
  files_thread_->post([this, request, number, size, key = client->connection->remote(), now = loop_.now()] {
    proto::MissingBlobs missing{request.request, {}};
    for (const Digest& blob : request.blobs) {
      if (!blobs_.have(blob, durability_of(request.durable)).value_or(false))
        missing.blobs.push_back(blob);
      else if (request.durable)
        leases_.ask(key, blob, now);
    }
    loop_.post([this, missing = std::move(missing), number, size] {
      const ClientPtr here = end_files_work(number, size);
      if (!here) return;
      send(here, missing);
    });
  });
}

// ---- data

void Gate::open_feed(proto::JobNumber job, const proto::Secret& key, bool open) {
  Feed& feed = feeds_[job];
  feed.key = key;
  feed.open = open;
  if (!open) return;
  for (const auto& [weak, request] : std::exchange(feed.waiting, {})) {
    const auto client = weak.lock();
    if (!client) continue;
    client->microbatches.push_back(request);
    read_microbatches(client);
  }
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
  client->microbatches.push_back(request);
  read_microbatches(client);
}

// One after the other, as they are taken: each may be large.
void Gate::read_microbatches(const ClientPtr& client) {
  if (client->reads_microbatch || client->microbatches.empty() || client->bytes_queued() >= kQueuedMax)
    return;
  const proto::GetMicrobatch request = std::move(client->microbatches.front());
  client->microbatches.pop_front();
  client->reads_microbatch = true;
  const std::weak_ptr<Client> weak = client;
  feeder_thread_->post([this, request, weak] {
    const auto read = std::make_shared<const Result<Feeder::Fed>>(feeder_.read(request));
    loop_.post([this, request, weak, read] {
      const auto here = weak.lock();
      if (!here) return;
      --here->microbatches_in_work;
      here->reads_microbatch = false;
      send_microbatch(here, request, *read);
      read_microbatches(here);
    });
  });
}

void Gate::send_microbatch(const ClientPtr& client, const proto::GetMicrobatch& request,
                           const Result<Feeder::Fed>& read) {
  if (!read)
    return send(client,
                proto::MicrobatchAnswer{request.request, read.error().code, read.error().message, 0, 0});
  send(client, proto::MicrobatchAnswer{request.request, ErrorCode::Internal, "", read->sample_position,
                                       read->valid_count});
  for (uint32_t i = 0; i < read->tensors.size(); ++i) {
    const auto tensor = std::make_shared<const dag::Tensor>(read->tensors[i]);
    client->connection->send({.kind = static_cast<uint8_t>(FrameKind::Tensor),
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
}

}  // namespace weft::broker
